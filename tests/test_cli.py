"""The command line: one line and exit 2 for what the user can mend, and the same command by `python -m`."""

import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import sharpmax
from sharpmax import cli
from sharpmax.commands.options import parser


def sharpmax_process(*arguments: str, before: str = "", cwd=None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, after the statements `before`."""
    code = f"import sys\n{before}\nfrom sharpmax.cli import main\nsys.exit(main({list(arguments)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)


def without(*modules: str) -> str:
    return "\n".join(f"sys.modules[{name!r}] = None" for name in modules)


def assert_one_line(error: str, *words: str) -> None:
    assert error.startswith("sharpmax: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert "Traceback" not in error
    for word in words:
        assert word in error


def status_of(*arguments: str) -> int:
    """Return the exit status, whether main returns it or argparse exits with it."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["sharpen"], ["sharpen", "reproduce"]),
        (["reproduce", "nonsense"], ["nonsense", "bounds"]),
        (["reproduce", "--seed", "one"], ["--seed", "one"]),
        (["reproduce", "bounds", "--seed", "-1"], ["seed", "-1"]),
        (["reproduce", "bounds", "--colour"], ["--colour", "--help"]),
        (["bench", "nonsense"], ["nonsense", "softmax"]),
        (["bench", "softmax", "--frameworks", "caffe"], ["caffe", "numpy, torch, jax"]),
        (["bench", "softmax", "--rows", "9", "--frameworks", "numpy", "--repeats", "0"], ["repeat", "0"]),
        (["bench", "softmax", "--rows", "0"], ["row", "0"]),
        (["reproduce", "bounds", "--out", ""], ["--out", "expected a path"]),
        (["diagnose", "minilm", "--text", "LICENSE", "--text", "README.md"], ["--text: given twice", "name all"]),
        (["evaluate", "minilm", "--card", "c", "--sizes", "4", "--sizes", "8"], ["--sizes: given twice"]),
        (["diagnose", " "], ["name or the folder of a model, got ' '"]),
        (["diagnose", "smollm2", "--task", "lookup:"], ["a wording among code", "got ''"]),
        (["diagnose", "smollm2", "--task", "copy:"], ["expected a task among", "copy:"]),
        (["evaluate", "./nothing", "--card", "smollm2"], ["there is no folder ./nothing"]),
        (["calibrate", "smollm2", "--text", "nothing.txt"], ["nothing.txt: No such file or directory"]),
    ],
)
def test_a_user_error_is_one_line_and_exit_2(arguments, words, capsys):
    assert status_of(*arguments) == 2
    assert_one_line(capsys.readouterr().err, *words)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["diagnose", "smolm2"], "smollm2"),
        (["diagnose", "smollm2", "--task", "lokup"], "lookup"),
        (["certify", "smollm2", "--card", "smolm2"], "smollm2"),
        (["calibrate", "smollm2", "--fit-tasks", "recal"], "recall"),
        (["evaluate", "smollm2", "--card", "smollm2", "--tasks", "lookup:cod"], "code"),
        (["finetune", "gemma-tiny", "--policy", "papr"], "paper"),
        (["finetune", "gemma-tiny", "--task", "clrstext"], "clrs-text"),
    ],
)
def test_a_misspelled_name_is_refused_with_a_suggestion_before_torch_is_imported(arguments, meant):
    done = sharpmax_process(*arguments, before=without("torch", "transformers"))
    assert done.returncode == 2
    assert_one_line(done.stderr, f"did you mean '{meant}'?")


def test_a_path_may_begin_with_the_home_folder(monkeypatch, tmp_path):
    """No shell expands the tilde of --out=~/runs: it made a folder of that name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    options = parser().parse_args(["diagnose", "x", "--out=~/runs", "--text", "~/a.txt", "~lock.txt"])
    assert options.out == tmp_path / "runs"
    assert options.texts == [tmp_path / "a.txt", Path("~lock.txt")]


def test_compare_takes_its_own_tasks(monkeypatch):
    from sharpmax.tasks.catalogue import TASKS

    asked = {}
    monkeypatch.setattr("sharpmax.commands.compare.compare_and_print", asked.update)
    assert cli.main(["compare", "--tasks", *TASKS]) == 0
    assert list(asked["tasks"]) == list(TASKS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "bounds", "--quick", "--out", "taken"], ["taken", "--out"]),
        (["bench", "softmax", "--json", "taken/a.json"], ["expected a folder, got taken"]),
        (["certify", "smollm2", "--card", "none.json"], ["none.json': expected a file"]),
    ],
)
def test_a_file_that_is_not_there_or_in_the_place_of_a_folder_is_named_without_a_number(
    arguments, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    assert status_of(*arguments) == 2
    assert_one_line(error := capsys.readouterr().err, *words)
    assert "Errno" not in error


def test_a_json_file_that_cannot_be_written_is_found_before_measuring(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sharpmax.bench.softmax.measure", lambda **_: pytest.fail("measured first"))
    assert status_of("bench", "softmax", "--json", str(tmp_path)) == 2
    assert_one_line(capsys.readouterr().err, str(tmp_path))


def test_a_run_with_another_config_is_a_user_error(tmp_path, capsys):
    folder = tmp_path / "bounds" / "quick-seed0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"seed": 7}')
    assert status_of("reproduce", "bounds", "--quick", "--out", str(tmp_path)) == 2
    assert_one_line(capsys.readouterr().err, "another config", "--out")


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("matplotlib", ["reproduce", "bounds", "--quick"], "sharpmax[report]"),
        ("jinja2", ["reproduce", "bounds", "--quick"], "sharpmax[report]"),
        ("torch", ["bench", "softmax", "--frameworks", "torch"], "sharpmax[torch]"),
        ("jax", ["bench", "softmax", "--frameworks", "jax"], "sharpmax[jax]"),
    ],
)
def test_a_missing_extra_is_named_before_any_work(missing, arguments, extra, tmp_path):
    done = sharpmax_process(*arguments, before=without(missing), cwd=tmp_path)
    assert done.returncode == 2
    assert_one_line(done.stderr, missing, f"pip install '{extra}'")
    assert not list(tmp_path.iterdir())


def test_help_and_version_need_no_extra():
    bare = without("jax", "torch", "matplotlib", "jinja2", "scipy")
    done = sharpmax_process("--help", before=bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reproduce" in done.stdout
    assert "bench" in done.stdout
    done = sharpmax_process("reproduce", "bounds", "--help", before=bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--quick" in done.stdout
    assert sharpmax_process("--version", before=bare).stdout == f"sharpmax {sharpmax.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["reproduce", "--help"], ["bench", "--help"]])
def test_every_command_stands_beside_what_it_does(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(arguments)
    listed = re.findall(r"^    (\S+)(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(listed) >= 3
    assert all(said.strip() for _, said in listed)


def test_python_m_is_the_same_command():
    def output(*command: str) -> tuple[int, str]:
        done = subprocess.run([*command, "reproduce", "nonsense"], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert output(sys.executable, "-m", "sharpmax") == output(str(Path(sys.executable).with_name("sharpmax")))


def test_debug_shows_the_traceback():
    arguments = ["bench", "softmax", "--frameworks", "caffe"]
    assert "Traceback" in sharpmax_process(*arguments, "--debug").stderr
    assert "Traceback" not in sharpmax_process(*arguments).stderr


def test_options_may_stand_before_or_after_the_experiment(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setitem(cli.VERBS, "reproduce", lambda **options: calls.append(options))
    for arguments in (["--quick", "--seed", "3", "bounds"], ["bounds", "--quick", "--seed", "3"]):
        assert status_of("reproduce", *arguments, "--out", str(tmp_path)) == 0
    assert calls[0] == calls[1]
    assert calls[0]["quick"] is True
    assert calls[0]["seed"] == 3


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    interrupt = f"""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born ignoring it
from sharpmax.experiments import bounds
bounds.measure = lambda *_, **__: os.kill(os.getpid(), {int(signal.SIGINT)})
"""
    done = sharpmax_process("reproduce", "bounds", "--quick", before=interrupt, cwd=tmp_path)
    assert done.returncode == 130
    last = done.stderr.splitlines()[-1]
    assert last == "sharpmax: interrupted; the same command continues where this one stopped"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["diagnose", "certify", "bench", "models", "cards"])
def test_an_interrupted_command_that_keeps_nothing_says_so(verb, monkeypatch, capsys):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.VERBS, verb, interrupt)
    arguments = {"bench": ["softmax"], "models": [], "cards": []}.get(verb, ["smollm2"])
    assert cli.main([verb, *arguments]) == 130
    assert capsys.readouterr().err == "sharpmax: interrupted; nothing was kept\n"


@pytest.mark.parametrize("verb", ["diagnose", "certify", "calibrate", "evaluate"])
def test_a_device_that_is_not_there_is_a_user_error(verb, tmp_path, capsys):
    sharpmax.PAPER.save(tmp_path / "card.json")
    card = ["--card", str(tmp_path / "card.json")] if verb == "evaluate" else []
    assert status_of(verb, "smollm2", "--device", "abacus", "--out", str(tmp_path), *card) == 2
    assert "cannot run on the device 'abacus'" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")  # a command's warnings are shown, not raised
def test_a_warning_is_one_line_and_said_once(monkeypatch, capsys):
    def warn():
        for _ in range(3):
            warnings.warn("a card of another model", UserWarning, stacklevel=1)
            warnings.simplefilter("default")  # as libraries do: Python forgets what it has said

    monkeypatch.setitem(cli.VERBS, "models", warn)
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().err == "sharpmax: warning: a card of another model\n"


def test_a_command_leaves_nothing_to_collect_when_it_ends(monkeypatch, capsys):
    """The interpreter's last collection would take seconds after the last line, of what torch and transformers make."""
    from sharpmax import __main__ as command

    frozen = []
    monkeypatch.setattr(command.gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr("sys.argv", ["sharpmax", "cards"])
    assert command.main() == 0
    assert frozen == [True]
    assert "smollm2" in capsys.readouterr().out
