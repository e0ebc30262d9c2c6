"""`sharpmax serve-check` against servers that answer as told: no model, no vLLM."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import sharpmax
from sharpmax.cli import main
from sharpmax.commands.serve_check import serve_check
from sharpmax.core.cards import Card
from sharpmax.tasks.prompts import draw, seed_of

QUESTIONS = [draw("lookup", size, seed=seed_of(0, "report"), index=i) for size in (4, 8) for i in range(3)]
RIGHT = {question.text: question.answer for question in QUESTIONS}
ASKED = {"sizes": (4, 8), "prompts": 3}
RECORD = {"tasks": {"lookup": {"4": {"accuracy": {"plain": 0.1, "policy": 0.9}}}}}


@contextmanager
def server(answer, status=200):
    """Serve what `answer(prompt)` says, piece by piece, as an OpenAI-compatible server streams it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._say(json.dumps({"data": [{"id": "the-model"}]}))

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["model"] == "the-model"
            assert asked["temperature"] == 0
            said = answer(asked["prompt"])
            pieces = [json.dumps({"choices": [{"text": piece}]}) for piece in (said[:2], said[2:])]
            self._say("".join(f"data: {piece}\n\n" for piece in (*pieces, "[DONE]")))

        def _say(self, content):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


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
    assert said.endswith("the card acts\n")


def test_a_card_that_changes_no_answer_does_not_act():
    with server(wrong) as carded, server(wrong) as plain:
        assert main(["serve-check", carded, "--plain", plain, "--sizes", "4", "--prompts", "2"]) == 3


@pytest.mark.parametrize(("answer", "verdict"), [(right, "acts"), (wrong, "does not act")])
def test_without_a_plain_server_the_cards_record_tells(card, answer, verdict):
    with server(answer) as url:
        found = serve_check(url, card=card, **ASKED)
    assert found["verdict"] == verdict
    assert found["recorded"] == {"plain": 0.1, "policy": 0.9}
    assert found["carded"]["first_token_seconds"] > 0


def test_a_card_without_a_record_tells_nothing(tmp_path):
    sharpmax.PAPER.save(tmp_path / "card.json")
    with server(right) as url:
        assert main(["serve-check", url, "--card", str(tmp_path / "card.json"), "--sizes", "4", "--prompts", "1"]) == 4


def test_one_server_alone_is_refused():
    with pytest.raises(ValueError, match="one server alone tells nothing"):
        serve_check("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:1", "cannot reach"), ("ftp://x", "begins with http"), ("file:///x", "http")]
)
def test_what_is_no_server_is_said_in_one_line(url, words, card, capsys):
    assert main(["serve-check", url, "--card", str(card)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_an_error_of_the_server_is_passed_on(card):
    with server(right, status=503) as url, pytest.raises(ValueError, match="answers 503"):
        serve_check(url, card=card, **ASKED)
