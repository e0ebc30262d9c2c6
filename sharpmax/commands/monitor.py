"""Show a watched run as a page: once, or again and again while it goes on."""

import time
from pathlib import Path

from sharpmax.report.monitor import PAGE, verdict, write_monitor_page
from sharpmax.runs.watched.record import Recorded, read_record, record_file

LONGEST = 10**6  # seconds between two looks


def monitor(
    run: str | Path, *, out: str | Path | None = None, live: bool = False, interval: float = 5.0,
    rounds: int | None = None,
) -> Path:  # fmt: skip
    """Write the page of a watched run, and return its path.

    Args:
        run: the folder of the record, or the record itself.
        out: the page's file; beside the record unless given.
        live: write the page again whenever the record has grown, until Ctrl-C. The page reloads itself meanwhile, and
            no more when it ends.
        interval: seconds between two looks at the record, and between two reloads.
        rounds: how many looks; None: without end.

    Raises:
        ValueError: a file that is not a record, an interval that no clock waits for, or a page in the record's place.
        OSError: no record, unless `live`, which waits for one.
    """
    if not 0 < interval <= LONGEST:
        raise ValueError(f"expected an interval above 0 and up to {LONGEST:,} seconds, got {interval!r}")
    file = record_file(run)
    page = Path(out) if out is not None else file.parent / PAGE
    if page.resolve() == file.resolve():
        raise ValueError(f"{page} is the record itself, which the page would replace; name another file")
    title = f"Attention of {file.parent.resolve().name if file.name == 'watch.jsonl' else file.stem}"
    if live:
        _follow(file, page, title, interval, rounds)
    return write_monitor_page(page, read_record(file), title=title)


def _follow(file: Path, page: Path, title: str, interval: float, rounds: int | None) -> None:
    seen, looks = -1, 0
    try:
        while rounds is None or looks < rounds:
            looks += 1
            size = file.stat().st_size if file.exists() else 0
            if size != seen:
                recorded = read_record(file) if size else Recorded({"layers": [], "heads": []}, [])
                write_monitor_page(page, recorded, title=title, reload_after=interval)
                if seen < 0:
                    print(f"page: {page}", flush=True)
                seen = size
            time.sleep(interval)
    except KeyboardInterrupt:
        pass  # as a user ends it


def print_monitor(run: Path, **options: object) -> None:
    """Write the page, and print where it is and what it says."""
    page = monitor(run, **options)  # type: ignore[arg-type]
    print("\n".join(verdict(read_record(record_file(run)))))
    print(f"page: {page}")
    print("next: open it in a browser; --live keeps it up to date while the run goes on")
