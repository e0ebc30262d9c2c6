"""What to type next can be pasted, and repeats what was given."""

import shlex

from sharpmax.commands.options import parser
from sharpmax.hf.verbs import judgement
from sharpmax.hf.verbs.calibrate import CalibrationResult
from sharpmax.hf.verbs.diagnose import diagnose
from sharpmax.hf.verbs.evaluate import evaluate
from sharpmax.hf.verbs.next_command import command
from tests.hf.verbs.sheets import right_if


def test_a_remark_and_a_time_stand_behind_a_hash():
    said = command("evaluate", "m", {"card": "my card.json", "sizes": [8, 16], "quick": True}, "worth it?", 200)
    assert said == "sharpmax evaluate m --card 'my card.json' --sizes 8 16 --quick  # worth it? (about 3 min)"
    assert command("certify", "m", {}, seconds=20) == "sharpmax certify m"


def test_an_undecided_verdict_on_a_text_of_ones_own_asks_for_a_longer_text(big, card, tmp_path, monkeypatch, capsys):
    """It says what the text gave, and what to type next has all the options that were given."""
    text = tmp_path / "my text.txt"
    text.write_text("\n\n".join(f"Line {n} of a text about {n * n} things." for n in range(120)))
    rise = {False: (1.0, 1.0), True: (0.99, 1.01)}
    monkeypatch.setattr(judgement, "sit", lambda _, __, p=None, **___: right_if(p is not None, rise[p is not None]))
    options = {"sizes": [2, 3], "tasks": ["lookup:parcel"], "windows": [32, 64], "text": text, "out": tmp_path}
    found = evaluate(big, card, prompts=30, text_tokens=8192, **options)
    assert "a third of it is judged on" in capsys.readouterr().err
    assert 0 < found["own_text"]["found"] < found["own_text"]["asked"] == 8192
    assert "a longer text would tell: this one gave" in found.summary()
    typed = parser().parse_args(shlex.split(found.next_step(), comments=True)[1:])
    assert (typed.card, typed.text, typed.tasks) == (card, text, ["lookup:parcel"])
    assert (typed.sizes, typed.windows, typed.prompts, typed.text_tokens) == ([2, 3], [32, 64], 30, 8192)
    enough = evaluate(big, card, prompts=30, text_tokens=256, **options)
    assert "more text would tell (--text-tokens)" in enough.summary()
    typed = parser().parse_args(shlex.split(enough.next_step(), comments=True)[1:])
    assert (typed.text, typed.windows) == (text, [32, 64])
    assert typed.text_tokens > 256


def test_a_quick_gain_is_judged_again_in_the_usual_windows(tmp_path):
    metrics = {"verdict": "gains", "card": "card.json", "quick": True, "options": {"windows": [64], "prompts": 30}}
    said = CalibrationResult(metrics, tmp_path, "m").next_step()
    assert "--quick read text in windows of 64 tokens only" in said
    typed = parser().parse_args(shlex.split(said, comments=True)[1:])
    assert (typed.windows, typed.prompts) == (None, 30)


def test_more_questions_are_asked_beside_the_diagnosis_that_advises_them(big, tmp_path):
    found = diagnose(big, task="lookup", lengths=[1, 2], out=tmp_path, quiet=True)
    typed = parser().parse_args(shlex.split(found.next_step(), comments=True)[1:])
    assert typed.asked == 32
    more = diagnose(big, task=typed.task, lengths=typed.lengths, asked=9, out=tmp_path, quiet=True)
    assert more["right"]["2"]["questions"] == 9
    assert more.folder != found.folder
