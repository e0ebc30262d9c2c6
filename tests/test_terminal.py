"""The command line's ends: printable output, a closed pipe, a full disk, Ctrl-C at any moment, no memory."""

import errno
import os
import signal
import subprocess
import sys
import warnings

import pytest
from safetensors import SafetensorError

from sharpmax import cli
from sharpmax.terminal import printable

HOSTILE = "a\x1b[31mb\x9bc\u202ed\x07\r\x7f"
PRINTED = r"a\x1b[31mb\x9bc\u202ed\x07\r\x7f"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `sharpmax` is ours."""
    ours = f'sharpmax() {{ "{sys.executable}" -m sharpmax "$@"; }}; set -o pipefail; '
    return subprocess.run(["bash", "-c", ours + command], capture_output=True, text=True)


def test_whatever_a_terminal_would_obey_becomes_an_escape():
    assert printable(HOSTILE) == PRINTED
    assert printable("\x00\u2066\u2028\udcff") == r"\x00\u2066\u2028\udcff"
    for fine in ("plain\ttext\n", "β = 1/θ …", "日本語 😀"):
        assert printable(fine) == fine


def test_a_hostile_name_is_printed_as_an_escape_by_either_stream(tmp_path, capsys, monkeypatch):
    (tmp_path / HOSTILE).touch()
    assert cli.main(["bench", "softmax", "--json", str(tmp_path / HOSTILE / "a.json")]) == 2
    monkeypatch.setitem(cli.VERBS, "models", lambda: print(HOSTILE))
    assert cli.main(["models"]) == 0
    out, error = capsys.readouterr()
    assert out == PRINTED + "\n"
    assert r"\x1b[31mb" in error
    assert printable(out + error) == out + error


@pytest.mark.filterwarnings("default")
def test_a_hostile_warning_is_printed_as_an_escape(capsys, monkeypatch):
    monkeypatch.setitem(cli.VERBS, "models", lambda: warnings.warn(HOSTILE, stacklevel=1))
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().err == f"sharpmax: warning: {PRINTED}\n"


def test_the_streams_are_as_before(capsys):
    before = sys.stdout, sys.stderr
    cli.main(["models"])
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert (sys.stdout, sys.stderr) == before


def test_output_that_the_encoding_lacks_is_an_escape():
    done = shell(r"PYTHONIOENCODING=ascii sharpmax bench softmax --frameworks $'\u03b2'")
    assert (done.returncode, done.stdout) == (2, "")
    assert r"got \u03b2" in done.stderr


@pytest.mark.parametrize("command", ["models", "--help"])
def test_a_reader_that_leaves_ends_the_command_silently(command):
    done = shell(f"sharpmax {command} | true")
    assert (done.returncode, done.stdout, done.stderr) in [(141, "", ""), (0, "", "")]  # 0: all was in the pipe before
    done = shell(f"(sleep 0; sharpmax {command}) > >(exec 0<&-; sleep 1)")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["models", "--help"])
def test_a_full_disk_is_one_line(command):
    done = shell(f"sharpmax {command} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "sharpmax: error: cannot write the output: No space left on device\n")


def test_a_closed_output_is_one_line():
    done = shell("sharpmax models >&-")
    assert done.returncode == 2
    assert done.stderr == (
        "sharpmax: error: standard output is closed; open it, or send it to a file or to /dev/null\n"
    )


def test_a_name_that_is_not_utf8_is_one_line(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/a\xff")  # noqa: PTH102
    done = shell(f"cd {tmp_path}; sharpmax certify a*")
    assert done.returncode == 2
    assert done.stderr == "sharpmax: error: 'a\\udcff' is not UTF-8; rename that file or folder\n"


@pytest.mark.parametrize("module", ["argparse", "sharpmax.cli", "sharpmax.bench", "sharpmax.commands.models"])
def test_ctrl_c_while_importing_is_one_line(module):
    interrupt = f"""
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
for name in [each for each in sys.modules if each == {module!r}]:
    del sys.modules[name]
sys.meta_path.insert(0, Interrupt())
sys.argv = ["sharpmax", "models"]
runpy.run_module("sharpmax", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "sharpmax: interrupted; nothing was kept\n")


def test_nothing_large_is_imported_before_ctrl_c_is_caught():
    code = "import sys, sharpmax.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"sharpmax", "sharpmax.__main__"} == {name for name in loaded if name.startswith(("sharpmax", "numpy"))}


def test_a_real_ctrl_c_at_any_moment_leaves_no_traceback():
    for wait in (0.05, 0.15, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
             "print(flush=True)\nimport sys; sys.argv = ['sharpmax', 'bench', 'softmax']\n"
             "from sharpmax.__main__ import main; sys.exit(main())"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(wait)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, "sharpmax: interrupted; nothing was kept\n")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError("Unable to allocate 7.28 TiB for an array"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), "memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes."), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "room on the disk"),
        (
            SafetensorError("I/O error: No space left on device (os error 28)"),
            "room on the disk",
        ),
    ],
)
def test_a_machine_too_small_is_one_line_and_other_faults_are_not_hidden(error, what, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setitem(cli.VERBS, "models", fail)
    assert cli.main(["models"]) == 2
    assert capsys.readouterr().err == f"sharpmax: error: not enough {what}: {error}\n"
    error = RuntimeError("a fault of our own")
    with pytest.raises(RuntimeError, match="of our own"):
        cli.main(["models"])


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (
            ["reproduce", "max-retrieval", "--largest", 10**30],
            "--largest to be at most 1,073,741,824, got 1,000,000,000",
        ),
        (["reproduce", "max-retrieval", "--seeds", 10**12], "--seeds to be at most 1,000, got 1,000,000,000,000"),
        (["reproduce", "clrs-text", "--seeds", 10**12], "--seeds to be at most 1,000"),
        (["bench", "training-step", "--seeds", 10**12], "--seeds to be at most 1,000"),
        (["bench", "softmax", "--rows", 10**30], "--rows to be at most 1,099,511,627,776"),
        (["bench", "softmax", "--rows", -(10**4000)], "--rows to be at least -1,099,511,627,776, got a number of more"),
        (["diagnose", "smollm2", "--lengths", 8, 10**12], "--lengths to be at most 16,777,216"),
        (["finetune", "gemma-tiny", "--lora", 0], "--lora to be at least 1, got 0"),
    ],
)
def test_a_number_beyond_its_limit_is_refused_before_any_work(arguments, limit, capsys):
    assert cli.main([str(each) for each in arguments]) == 2
    error = capsys.readouterr().err
    assert limit in error
    assert error.count("\n") == 1
