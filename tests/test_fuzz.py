"""10,000 command lines and files from a stranger, seeds fixed: no traceback, and every refusal is one line with a name.

A case is drawn from its own number, so a failure names what to draw again. Nothing starts real work: results would go
into a file that is no folder, and models lie in folders that hold no whole one.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import pytest

from sharpmax import PAPER, Constant, EntropyTarget, LogLinear, PerHead, PerLayer, Policy, Table, cli, load_card
from sharpmax.bench import BENCHMARKS
from sharpmax.commands.options import parser
from sharpmax.experiments import EXPERIMENTS
from sharpmax.report import Figure, Page, Text, write_report
from sharpmax.report import Table as Rows
from sharpmax.runs.run_folder import RunFolder, read_metrics
from sharpmax.terminal import printable

ODD = [
    None, True, 0, -1, 0.5, 1e308, 5e-324, 10**400, -(10**30), float("nan"), float("-inf"), "", "x", "\x1b[31m\x07",
    "\u202e", "\ud800", "../../x", "/etc/passwd", "a" * 1000, "\0", [], [[]], [0.5] * 50, {}, {"type": "Constant"},
    {"": 0},
]  # fmt: skip


def cases(few: int, all_of_them: int) -> pytest.MarkDecorator:
    """Run the first few cases with every test, and the others with the slow ones."""
    rest = pytest.param(range(few, all_of_them), marks=pytest.mark.slow)
    return pytest.mark.parametrize("numbers", [range(few), rest], ids=["few", "rest"])


def damaged(draw: random.Random, content: object) -> bytes:
    """Return JSON in which some values are odd, gone or doubled; then, of some, bytes."""
    content = json.loads(json.dumps(content))
    for _ in range(draw.randint(1, 3)):
        content = changed(draw, content)
    data = bytearray(json.dumps(content).encode())
    if draw.random() < 0.3:
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data) + 1)
            data[at : at + draw.choice([0, 1, 5])] = draw.choice(
                [b"", bytes([draw.randrange(256)]), b'"', b"[" * 300, b"}", b"1e999", b"NaN", b"\xff"]
            )
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.1 else data)


def changed(draw: random.Random, value: object) -> object:
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name = draw.choice(list(value))
        what = draw.random()
        if what < 0.1:
            return {other: each for other, each in value.items() if other != name}
        return value | ({str(draw.choice(ODD)): value[name]} if what < 0.2 else {name: changed(draw, value[name])})
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        return [*value[:at], changed(draw, value[at]), *value[at + draw.randint(0, 2) :]]
    return draw.choice(ODD)


def must_be_one_line(refusal: Exception, *names: object) -> None:
    said = str(refusal)
    assert said
    assert "\n" not in said
    assert all(str(name) in said for name in names), said


POLICIES: list[Policy] = [
    PAPER,
    Constant(2.0),
    EntropyTarget(0.5),
    LogLinear(a=[[0.1], [0.2]]),
    Table((0.5, 2.0), (1.0, 3.0)),
    PerLayer((PerHead((PAPER, Constant(1.0))), EntropyTarget(0.5))),
]


@cases(few=300, all_of_them=3000)
def test_no_card_breaks_its_reader(numbers, tmp_path):
    file, accepted = tmp_path / "card.json", 0
    for number in numbers:
        draw = random.Random(f"card {number}")
        details = {"model": "m", "data": "d", "fitted_range": {"count": (4, 512)}, "held_out": {"accuracy": [0.5]}}
        draw.choice(POLICIES).save(file, **details)
        file.write_bytes(damaged(draw, json.loads(file.read_text())))
        try:
            load_card(file)
            accepted += 1
        except ValueError as refusal:
            must_be_one_line(refusal, file)
    assert 0 < accepted < len(numbers) / 2


@cases(few=100, all_of_them=2000)
def test_no_run_folder_breaks_its_reader(numbers, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARPMAX_COMMIT", "fuzzed")  # git need not be asked each time
    config, accepted = {"seed": 0, "sizes": [1, 2]}, 0
    for number in numbers:
        draw = random.Random(f"run {number}")
        run = RunFolder.open(tmp_path / str(number), "demo", "a", config)
        run.once("one", lambda: {"losses": [0.5, 0.25], "note": "x"})
        run.finish({"accuracy": 0.5})
        Page("T", "l", [Text("a", "b"), Rows(["x"], [["1"]]), Figure("f.svg")]).save(run.path)
        (run.path / "f.svg").write_text("<svg/>")
        file = run.path / draw.choice(["config.json", "steps/one.json", "metrics.json", "page.json"])
        data = damaged(draw, json.loads(file.read_text()))
        file.write_bytes(data)
        try:
            again = RunFolder.open(tmp_path / str(number), "demo", "a", config)
            value, metrics = again.once("one", dict), read_metrics(run.path)
            if b'"sha256": "' in data:  # with its seal a file is as it was written, or refused
                assert value == {"losses": [0.5, 0.25], "note": "x"}
                assert metrics["accuracy"] == 0.5
            write_report(tmp_path / str(number))
            accepted += 1
        except (ValueError, FileNotFoundError) as refusal:
            must_be_one_line(refusal, run.path)
        shutil.rmtree(tmp_path / str(number))
    assert 0 < accepted < len(numbers) / 2


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "dtype": "float32",
    "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48, "vocab_size": 64,
    "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False, "auto_map": {"AutoModelForCausalLM": "evil.Model"}, "quantization_config": {},
    "attn_implementation": "sdpa", "id2label": {"0": "a"}, "layer_types": ["full_attention"] * 2,
}  # fmt: skip


@cases(few=30, all_of_them=1000)
def test_no_config_breaks_its_reader(numbers, tmp_path):
    from sharpmax.hf import load

    for number in numbers:
        draw = random.Random(f"config {number}")
        (tmp_path / "config.json").write_bytes(damaged(draw, CONFIG))
        with pytest.raises(ValueError, match="does not hold a whole model") as refused:  # it has no weights
            load(str(tmp_path))
        must_be_one_line(refused.value, tmp_path)


def options_of(verb: str) -> list[str]:
    """Return the options of a command, but for one that need not end and one that shows tracebacks."""
    (verbs,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return sorted(set(verbs.choices[verb]._option_string_actions) - {"-h", "--live", "--debug"})


OPTIONS = {verb: options_of(verb) for verb in cli.VERBS}
NAMELESS = ("models", "cards", "compare")


def a_command(draw: random.Random, folder: Path) -> list[str]:
    """Return a command line with options of any command, and values that are right, odd, or of another option."""
    numbers = ["0", "1", "-1", "2.5", "1e9", str(10**12), str(10**30), "9" * 5000, "nan", "inf", "abc", "", "٣"]
    paths = [str(folder / name) for name in ("file", "none", "card.json", "odd.json", "model", "none/a\x1b[31m")]
    texts = [
        "x",
        "\x1b]0;title\x07",
        "\u202e",
        "a" * 2000,
        "--",
        "-",
        "lookup",
        "learn",
        "abc",
        "cpu",
        "abacus",
        "\udcff",
    ]
    verb = draw.choice([*cli.VERBS, "sharpen", ""])
    named = {
        "reproduce": [experiment.name for experiment in EXPERIMENTS],
        "bench": [benchmark.name for benchmark in BENCHMARKS],
        "monitor": paths,
        "serve-check": ["http://127.0.0.1:9", "http://127.0.0.1:9/\x1b[31m", "http://[", "ftp://127.0.0.1", *paths],
    }.get(verb, [str(folder / "model"), str(folder / "empty")])
    flags = {
        "reproduce": [flag for experiment in EXPERIMENTS for flag in experiment.options],
        "bench": [flag for benchmark in BENCHMARKS for flag in benchmark.options],
    }.get(verb, OPTIONS.get(verb, []))
    flags += [
        "--seed", "--quick", "--text", "--task", "--lengths", "--rows", "--device", "--length", "--card", "--method",
        "--fit-tasks", "--fit-sizes", "--steps", "--penalty", "--truth", "--tasks", "--sizes", "--prompts", "--windows",
        "--policy", "--lora", "--tokens", "--learning-rate", "--help", "--version", "--most-rise", "--accept-license",
    ]  # fmt: skip
    line = [verb] if verb in NAMELESS else [verb, draw.choice([*named, *named, *named, draw.choice(texts)])]
    for _ in range(draw.randint(0, 4)):
        line += [draw.choice(flags), *draw.choices([*numbers, *paths, *texts], k=draw.choice([0, 1, 1, 1, 2]))]
    # Whatever else is right, results have no place to go.
    nowhere = {"bench": ["--json", str(folder / "file" / "a.json")], "monitor": ["--out", str(folder / "file" / "a")]}
    out = [] if verb in ("models", "cards", "serve-check") else nowhere.get(verb, ["--out", str(folder / "file")])
    return [*line, *out, *["--quiet"] * (verb in cli.LONG)]  # how long it takes is said on standard error


@pytest.mark.filterwarnings("ignore")
@cases(few=60, all_of_them=4000)
def test_no_command_line_breaks_the_command(numbers, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no name is looked up on the hub
    for name in ("model", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("some text")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "odd.json").write_text('{"results": [5], "sharpmax_card": 1}')
    PAPER.save(tmp_path / "card.json", model="\x1b[31m")
    for number in numbers:
        line = a_command(random.Random(f"command {number}"), tmp_path)
        try:
            status = cli.main(line)
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, error = capsys.readouterr()
        assert status in (0, 2), (number, line, error)
        refusals = [said for said in error.splitlines() if not said.startswith("sharpmax: warning: ")]
        assert len(refusals) == (status == 2), (number, line, error)
        assert all(said.startswith("sharpmax: error: ") for said in refusals), (number, line, error)
        assert printable(out + error) == out + error, (number, line)
    assert not (tmp_path / "runs").exists()
