"""Ask a server for completions as OpenAI's interface streams them, and trust nothing that it answers.

An answer is one that keeps to the interface: UTF-8, JSON of the right kinds, an end that is said. Anything else is an
error that names the server: an answer that merely looks empty would count as a different one.
"""

import http.client
import json
import math
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from sharpmax.core.checks import short

ANSWER_TOKENS = 8  # an answer is five characters, which tokenizers cut into one to five
MOST_PIECES = 8 * ANSWER_TOKENS  # of a stream; a server that keeps to max_tokens sends about one per token
MOST_BYTES = 2**20  # of one line, or of a list of models

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """One answer: its text, seconds until its first token and until its last, and its tokens."""

    text: str
    first: float
    last: float
    tokens: int


class Server:
    """A server of completions at a URL, which must end each answer within `timeout` seconds.

    Raises, with the URL in the message:
        ValueError: the URL is none, or what it answers is no completion.
        OSError: it cannot be reached, breaks off, or takes longer.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        check_address(url)
        self.url, self.timeout = url.rstrip("/"), timeout

    def first_model(self) -> str:
        """Return the name of the first model that it lists."""

        def read() -> bytes:
            with self._opened(f"{self.url}/v1/models", None) as answer:
                return bytes(answer.read(MOST_BYTES))

        said = self._in_time(read)
        try:
            name = json.loads(said)["data"][0]["id"]
        except (KeyError, IndexError, TypeError, ValueError, RecursionError):
            name = None
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self.url} does not list its models as an OpenAI-compatible server does")
        return name

    def ask(self, model: str, prompt: str) -> Reply:
        """Ask for one completion, token by token, greedily."""
        return self._in_time(lambda: self._streamed(model, prompt))

    def _streamed(self, model: str, prompt: str) -> Reply:
        body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True}
        started = time.perf_counter()
        first, text, tokens, choices, ended = 0.0, "", 0, 0, False
        with self._opened(f"{self.url}/v1/completions", body) as answer:
            for event in self._events(answer, started + self.timeout):
                if event is None:
                    ended = True
                    break
                choice = self._choice(event)
                if choice is None:
                    continue
                choices += 1
                ended = ended or choice.get("finish_reason") is not None
                if piece := choice.get("text"):
                    first = first or time.perf_counter() - started
                    text, tokens = text + piece, tokens + 1
                if tokens > MOST_PIECES:
                    raise self._wrong(f"more than {MOST_PIECES} pieces, where {ANSWER_TOKENS} tokens were asked for")
        if not choices:
            raise self._wrong("no completion")
        if not ended:
            raise self._wrong("a stream that breaks off: neither a finish_reason nor [DONE] came")
        return Reply(text, first, time.perf_counter() - started, tokens)

    def _events(self, answer: Any, deadline: float) -> Iterator[dict[str, Any] | None]:
        """Yield what the stream says, and None where it says that it ends."""
        while line := answer.readline(MOST_BYTES):
            if time.perf_counter() > deadline:
                raise self._late()
            try:
                said = line.decode().strip()
            except UnicodeDecodeError as error:
                raise self._wrong(f"bytes that are no UTF-8: {short(line)}") from error
            if not said or said.startswith((":", "event:", "id:", "retry:")):
                continue
            said = said.removeprefix("data:").strip()
            if said == "[DONE]":
                yield None
                return
            try:
                event = json.loads(said)
            except (ValueError, RecursionError) as error:
                raise self._wrong(f"something other than JSON: {short(said)}") from error
            if not isinstance(event, dict):
                raise self._wrong(f"something other than an event: {short(said)}")
            if event.get("error") is not None:
                raise ValueError(f"{self.url} says: {short(event['error'])}")
            yield event

    def _choice(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the event's completion; None where it has none, as one that only tells of usage."""
        choices = event.get("choices")
        if choices == []:
            return None
        choice = choices[0] if isinstance(choices, list) else None
        if len(choices or ()) > 1 or (isinstance(choice, dict) and choice.get("index") not in (None, 0)):
            raise self._wrong("several completions, where one was asked for")
        is_end = isinstance(choice, dict) and choice.get("finish_reason") is not None
        if not isinstance(choice, dict) or not ("text" in choice or is_end):  # a chat has a delta in its place
            raise self._wrong(f"an event without a text: {short(event)}")
        if not isinstance(choice.get("text"), str | None):
            raise self._wrong(f"an event without a text: {short(event)}")
        return choice

    def _opened(self, url: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode("utf-8", "replace")
            raise ValueError(f"{url} answers {error.code}: {' '.join(said.split())}") from error
        except TimeoutError as error:
            raise self._late() from error
        except urllib.error.URLError as error:
            raise OSError(f"cannot reach {url}: {error.reason}") from error

    def _in_time(self, call: Callable[[], T]) -> T:
        """Return what the call does, or raise when its time is over, whatever it waits for then."""
        done: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                done.append(call())
            except TimeoutError:
                failed.append(self._late())
            except http.client.HTTPException as error:
                said = f"{type(error).__name__}: {short(str(error))}"
                failed.append(ValueError(f"{self.url} does not answer as HTTP does ({said}); is it the right port?"))
            except ConnectionError as error:
                failed.append(OSError(f"{self.url} breaks off: {error.strerror or error}"))
            except BaseException as error:
                failed.append(error)

        worker = threading.Thread(target=work, daemon=True)  # nobody waits for it at the end
        worker.start()
        worker.join(self.timeout)
        if failed:
            raise failed[0]
        if not done:
            raise self._late()
        return done[0]

    def _late(self) -> OSError:
        return OSError(f"{self.url} did not end its answer within {self.timeout:g} s (--timeout)")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.url} answers {what}; expected a stream of OpenAI's /v1/completions")


def check_address(url: str) -> None:
    """Raise ValueError for what is no address of a server: it would be an error of the library's, later."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"expected an address that begins with http:// or https://, got {url!r}")
    try:
        parts = urllib.parse.urlsplit(url)
        host, beside = (parts.hostname or "").encode("idna"), (parts.username, parts.query, parts.fragment)
        is_plain = parts.path.isascii() and parts.path.isprintable() and " " not in url and not any(beside)
        if not host or parts.port == 0 or not is_plain:
            raise ValueError
    except ValueError:  # of `port` too, and of a host that cannot be encoded
        raise ValueError(f"expected the address of a server, as http://127.0.0.1:8000, got {url!r}") from None


def check_seconds(name: str, value: Any) -> None:
    """Raise ValueError unless it is a positive, finite number of seconds that a clock can wait for."""
    if not isinstance(value, int | float) or not (0 < value <= threading.TIMEOUT_MAX and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
