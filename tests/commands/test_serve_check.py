"""`sharpmax serve-check` against servers that answer as told: no model, no vLLM."""

import itertools
import json
import socketserver
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import sharpmax
from sharpmax.cli import main
from sharpmax.commands.completions import Server
from sharpmax.commands.serve_check import serve_check
from sharpmax.core.cards import Card
from sharpmax.tasks.prompts import draw, seed_of

QUESTIONS = [draw("lookup", size, seed=seed_of(0, "report"), index=i) for size in (4, 8) for i in range(3)]
RIGHT = {question.text: question.answer for question in QUESTIONS}
ASKED = {"sizes": (4, 8), "prompts": 3}
RECORD = {"tasks": {"lookup": {"4": {"accuracy": {"plain": 0.1, "policy": 0.9}}}}}


@contextmanager
def in_a_thread(serving):
    """Let a server serve until the block ends; yields its address."""
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_address[1]}"
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


@contextmanager
def server(answer, status=200, stream=None, models=b'{"data": [{"id": "the-model"}]}'):
    """Serve a `stream` of bytes, or what `answer(prompt)` says, piece by piece, as OpenAI's interface streams it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._say(models)

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["model"] == "the-model"
            assert asked["temperature"] == 0
            if stream is not None:
                self.send_response(status)
                self.end_headers()
                with suppress(OSError):  # who asked has left
                    for piece in stream:
                        self.wfile.write(piece)
                return
            said = answer(asked["prompt"])
            pieces = [json.dumps({"choices": [{"text": piece}]}) for piece in (said[:2], said[2:])]
            self._say("".join(f"data: {piece}\n\n" for piece in (*pieces, "[DONE]")).encode())

        def _say(self, content):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    with in_a_thread(serving) as url:
        yield url


def right(prompt):
    return RIGHT[prompt] + ".\nThe"


def wrong(prompt):
    return " 0000.\n"


@pytest.fixture
def card(tmp_path):
    Card(policy=sharpmax.PAPER, held_out=RECORD).save(tmp_path / "card.json")
    return tmp_path / "card.json"


def test_beside_a_plain_server_it_says_what_differs_and_what_it_costs(capsys):
    with server(right) as carded, server(wrong) as plain:
        status = main(["serve-check", carded, "--plain", plain, "--sizes", "4", "8", "--prompts", "3"])
    said = capsys.readouterr().out
    assert status == 0
    assert "plain      0.0% of 6 right" in said
    assert "carded   100.0% of 6 right" in said
    assert "of the plain server's tokens/s; 6 answers differ" in said
    assert "the card acts\nnext: serve with it" in said


def test_a_server_that_never_says_the_same_twice_tells_nothing(capsys):
    count = itertools.count()
    with server(lambda _: f" {next(count)} ") as noisy:
        assert main(["serve-check", noisy, "--plain", noisy, "--sizes", "4", "--prompts", "3"]) == 4
    said = capsys.readouterr().out
    assert "0 answers differ\n3 answers came out otherwise when they were asked for again" in said
    assert "nothing tells\nnext: name a plain server" in said


def test_a_card_that_changes_no_answer_does_not_act():
    with server(wrong) as carded, server(wrong) as plain:
        assert main(["serve-check", carded, "--plain", plain, "--sizes", "4", "--prompts", "2"]) == 3


@pytest.mark.parametrize(("answer", "verdict"), [(right, "acts"), (wrong, "does not act")])
def test_without_a_plain_server_the_cards_record_tells(card, answer, verdict):
    with server(answer) as url:
        found = serve_check(url, card=card, **ASKED)
    assert found["verdict"] == verdict
    assert found["recorded"] == {"plain": 0.1, "policy": 0.9}
    assert found["judged_at"] == {4: 4}
    assert found["carded"]["first_token_seconds"] > 0


def test_a_size_that_is_named_twice_is_asked_once():
    with server(right) as carded, server(wrong) as plain:
        found = serve_check(carded, plain=plain, sizes=(4, 4, 4), prompts=2)
    assert (found["carded"]["questions"], found["differ"], found["sizes"]) == (2, 2, [4])


@pytest.mark.parametrize("silent", ["carded", "plain"])
def test_a_server_that_says_nothing_tells_nothing(silent, capsys):
    answers = {"carded": wrong, "plain": wrong, silent: lambda _: ""}
    with server(answers["carded"]) as carded, server(answers["plain"]) as plain:
        assert main(["serve-check", carded, "--plain", plain, "--sizes", "4", "--prompts", "2"]) == 4
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(silent))
    assert line.endswith("no answer has a text")


def test_a_record_of_other_sizes_is_told_as_such(card, capsys):
    with server(right) as url:
        assert main(["serve-check", url, "--card", str(card), "--sizes", "8", "--prompts", "3"]) == 0
    assert "record at 4 entries: 90.0% with it, 10.0% without; here at 8: 100.0%" in capsys.readouterr().out


def test_a_card_without_a_record_tells_nothing(tmp_path):
    sharpmax.PAPER.save(tmp_path / "card.json")
    with server(right) as url:
        assert main(["serve-check", url, "--card", str(tmp_path / "card.json"), "--sizes", "4", "--prompts", "1"]) == 4


def test_one_server_alone_is_refused():
    with pytest.raises(ValueError, match="one server alone tells nothing"):
        serve_check("http://127.0.0.1:1")


def test_an_error_of_the_server_is_passed_on(card):
    with server(right, status=503) as url, pytest.raises(ValueError, match="answers 503"):
        serve_check(url, card=card, **ASKED)


def event(**choice):
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


END = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ([], "no completion"),
        ([END], "no completion"),
        ([b'data: {"choices": []}\n\n', END], "no completion"),
        ([b"<html>"], "something other than JSON: '<html>'"),
        ([b"data: [1]\n\n", END], "other than an event"),
        ([b'data: {"choices": [{"text": "\xff\xfe 1234"}]}\n\n', END], "no UTF-8"),
        ([event(text=1234), END], "without a text"),
        ([b'data: {"choices": {"text": "a"}}\n\n', END], "without a text"),
        ([event(text=" 12")], "breaks off"),
        ([b'{"choices":[{"text":" 12'], "other than JSON"),
        ([b'data: {"error": "out of memory"}\n\n', END], "says: 'out of memory'"),
        ([event(text=" 1")] * 100, "more than 64 pieces"),
        ([event(text=" 9", index=1), event(text=" 1", index=0), END], "several completions"),
        ([b'data: {"choices": [{"text": "4"}, {"text": "9"}]}\n\n', END], "several completions"),
        ([b'data: {"choices": [{"delta": {"content": "4"}}]}\n\n', END], "an event without a text"),
    ],
)
def test_a_server_that_answers_no_completion_passes_no_check(stream, words, capsys):
    with server(None, stream=stream) as carded, server(right) as plain:
        status = main(["serve-check", carded, "--plain", plain, "--sizes", "4", "--prompts", "1"])
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert words in said.err
    assert carded in said.err
    assert said.err.count("\n") == 1


def test_an_empty_answer_whose_end_is_said_is_an_answer():
    with server(None, stream=[event(text="", finish_reason="stop")]) as url:
        assert Server(url, timeout=9).ask("the-model", "?").text == ""


@pytest.mark.parametrize("endless", [b": wait\n\n", b"x"])
def test_a_server_that_never_ends_its_answer_is_left_in_time(endless):
    def drip():
        for _ in itertools.count():
            time.sleep(0.02)
            yield endless

    started = time.perf_counter()
    with server(None, stream=drip()) as url, pytest.raises(OSError, match=r"did not end its answer within 0.3 s"):
        serve_check(url, plain=url, timeout=0.3, **ASKED)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("models", [b'{"data": [{"id": null}]}', b'{"data": []}', b"[", b"\xff"])
def test_a_server_without_a_model_by_name_is_refused(models):
    with server(right, models=models) as url, pytest.raises(ValueError, match=f"{url} does not list its models"):
        serve_check(url, plain=url, **ASKED)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("http://127.0.0.1:1", "cannot reach"),
        ("ftp://x", "begins with http"),
        ("file:///x", "http"),
        ("http://127.0.0.1:1 --prompts 0", "prompts must be 1 or more, got 0"),
        ("http://127.0.0.1:1 --prompts -1", "prompts must be 1 or more"),
        ("http://127.0.0.1:1 --sizes 4 0", "sizes must be 1 or more"),
        ("http://127.0.0.1:1 --together 0", "together must be 1 or more"),
        ("http://127.0.0.1:1 --timeout 0", "timeout must be a positive number of seconds"),
        ("http://127.0.0.1:1 --timeout nan", "timeout must be a positive number of seconds"),
        ("http://127.0.0.1:1 --timeout 1e300", "timeout must be a positive number of seconds"),
        ("http://127.0.0.1:1 --card smollm3", "did you mean 'smollm2'"),
    ],
)
def test_what_means_nothing_is_named_in_one_line(arguments, words, card, capsys):
    assert main(["serve-check", "--card", str(card), *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@contextmanager
def what_is_no_http(said):
    """Say these bytes to whoever connects, as a server of something else does."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.wfile.write(said)

    with in_a_thread(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        OK + b"X: 1\r\n" * 300 + b"\r\n",
        OK + b"X: " + b"1" * 100_000 + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n40\r\nabc",
    ],
)
def test_a_server_of_something_else_is_named_in_one_line(said, capsys):
    with what_is_no_http(said) as url:
        assert main(["serve-check", url, "--plain", url]) == 2
    said = capsys.readouterr().err
    assert url in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://a b", "http://127.0.0.1:word", "http://127.0.0.1:99999", "http://[::1", "http://127.0.0.1/é",
        "http://user:secret@127.0.0.1:1", f"http://{'a' * 70}.example", "http://127.0.0.1:1/?v=1", "http://?",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_before_any_server_is_asked(url):
    with server(right) as carded, pytest.raises(ValueError, match="expected the address of a server") as refused:
        serve_check(carded, plain=url, **ASKED)
    assert repr(url) in str(refused.value)


def test_answers_without_a_text_tell_nothing():
    with server(None, stream=[event(text="", finish_reason="stop")]) as url:
        assert serve_check(url, plain=url, **ASKED)["verdict"] == "unknown"


def recorded(lookup, tmp_path):
    Card(policy=sharpmax.PAPER, held_out={"tasks": {"lookup": lookup}}).save(tmp_path / "card.json")
    return tmp_path / "card.json"


def test_a_record_that_is_the_same_with_and_without_the_card_tells_nothing(tmp_path):
    card = recorded({"4": {"accuracy": {"plain": 0.5, "policy": 0.5}}}, tmp_path)
    with server(right) as url:
        assert serve_check(url, card=card, **ASKED)["verdict"] == "unknown"


@pytest.mark.parametrize(
    "lookup",
    [
        [1], {"many": {"accuracy": {"plain": 0.1, "policy": 0.9}}}, {"4": {}}, {"4": {"accuracy": 0.5}},
        {"4": {"accuracy": {"plain": "a", "policy": "b"}}}, {"4": {"accuracy": {"plain": 50, "policy": 90}}},
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused_and_the_card_named(lookup, tmp_path):
    with pytest.raises(ValueError, match=r"the card .*card.json does not record its accuracy"):
        serve_check("http://127.0.0.1:1", card=recorded(lookup, tmp_path), **ASKED)
