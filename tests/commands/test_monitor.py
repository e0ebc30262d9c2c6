"""`sharpmax monitor`: the page of a record, once or live, and errors in one line."""

import json
import threading
import time

import pytest

from sharpmax.cli import main
from sharpmax.commands.monitor import monitor

HEAD = {"watched": 1, "layers": ["a"], "heads": [1], "every": 1}


def line(step):
    return {"step": step, "maximum": [[1.0 + step]], "entropy": [[1.0]], "relative_entropy": [[0.5]], "rows": 4}


def write(file, steps):
    file.write_text("".join(json.dumps(each) + "\n" for each in (HEAD, *map(line, range(steps)))))


def test_the_page_stands_beside_the_record(tmp_path, capsys):
    write(tmp_path / "watch.jsonl", 3)
    assert main(["monitor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "3 readings of 1 head, from step 0 to step 2" in said
    assert f"page: {tmp_path / 'monitor.html'}" in said
    assert "location.reload" not in (tmp_path / "monitor.html").read_text()


def test_another_file_may_be_named(tmp_path):
    write(tmp_path / "mine.jsonl", 1)
    assert main(["monitor", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "page.html")]) == 0
    assert "Attention of mine" in (tmp_path / "page.html").read_text()


def test_a_live_page_grows_with_the_record_and_ends_still(tmp_path):
    seen = []
    page = tmp_path / "monitor.html"

    def run():
        for steps in (1, 2, 3):
            write(tmp_path / "watch.jsonl", steps)
            until = time.monotonic() + 20
            while time.monotonic() < until:
                text = page.read_text() if page.exists() else ""
                if f"{steps} reading" in text:
                    seen.append((steps, "location.reload" in text))
                    break
                time.sleep(0.01)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        monitor(tmp_path, live=True, interval=0.02, rounds=5) if (tmp_path / "watch.jsonl").exists() else None
    thread.join()
    assert [steps for steps, _ in seen] == [1, 2, 3]
    monitor(tmp_path, live=True, interval=0.02, rounds=1)
    assert "location.reload" not in page.read_text()  # the last page is still


def test_a_live_page_waits_for_a_run_that_has_not_begun(tmp_path, monkeypatch):
    pages = []

    def sleep(seconds):
        pages.append((tmp_path / "monitor.html").read_text())
        if len(pages) == 2:
            raise KeyboardInterrupt
        write(tmp_path / "watch.jsonl", 2)

    monkeypatch.setattr(time, "sleep", sleep)
    monitor(tmp_path, live=True)
    assert "Nothing is recorded yet" in pages[0]
    assert "2 readings" in pages[1]
    assert "location.reload" in pages[1]


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        (None, [], "No such file"),
        ("{}\n", [], "not the record of a watched run"),
        ("", ["--interval", "0"], "interval above 0"),
        ("", ["--live", "--interval", "inf"], "interval above 0 and up to 1,000,000 seconds, got inf"),
        ("", ["--live", "--interval", "1e300"], "interval above 0 and up to"),
    ],
)
def test_errors_take_one_line(tmp_path, capsys, content, more, said):
    if content is not None:
        (tmp_path / "watch.jsonl").write_text(content)
    assert main(["monitor", str(tmp_path), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_page_never_takes_the_place_of_the_record(tmp_path, capsys):
    write(tmp_path / "watch.jsonl", 2)
    before = (tmp_path / "watch.jsonl").read_bytes()
    assert main(["monitor", str(tmp_path), "--out", str(tmp_path / "watch.jsonl")]) == 2
    assert "is the record itself" in capsys.readouterr().err
    assert (tmp_path / "watch.jsonl").read_bytes() == before


def test_readings_without_a_row_are_told_as_such(tmp_path, capsys):
    (tmp_path / "watch.jsonl").write_text(json.dumps(HEAD) + "\n" + json.dumps({**line(0), "maximum": [[None]]}) + "\n")
    assert main(["monitor", str(tmp_path)]) == 0
    assert "No row was counted" in capsys.readouterr().out
