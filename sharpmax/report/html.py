"""Gather all pages under a folder into one `report.html` that needs no network and no other file.

Everything that comes from data is escaped by the template; figures are embedded as images, in which no script can run.
"""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax.files import atomic
from sharpmax.files.inside import inside
from sharpmax.files.untrusted import read_bytes, read_json
from sharpmax.report.page import PAGE_FILE, Block, Figure, Page
from sharpmax.report.templates import render

REPORT_FILE = "report.html"
_IMAGE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


def write_report(root: str | Path, *, order: Sequence[str] = ()) -> Path:
    """Gather every `page.json` under `root` into `root/report.html`.

    Args:
        root: the folder that holds `<experiment>/<name>/page.json`.
        order: experiments to put first, in this order; the others follow by name.

    Raises:
        ValueError: if there is no page, or one cannot be read.
    """
    root = Path(root)
    files = sorted(root.glob(f"*/*/{PAGE_FILE}"), key=lambda file: _place(file.parent.relative_to(root), order))
    if not files:
        raise ValueError(f"found no {PAGE_FILE} under {root}, expected at least one; run an experiment there first")
    sections = [_section(file, root) for file in files]
    report = root / REPORT_FILE
    atomic.write_text(report, render("report.html.jinja", sections=sections))
    return report


def write_page(folder: str | Path, file: Path) -> Path:
    """Write the page of one run folder as an HTML file of its own, in the report's look."""
    section = _section(Path(folder) / PAGE_FILE, Path(folder).parent.parent)
    atomic.write_text(file, render("report.html.jinja", sections=[section]))
    return file


def _place(folder: Path, order: Sequence[str]) -> tuple[int, str]:
    experiment = folder.parts[0] if folder.parts else ""
    return (order.index(experiment) if experiment in order else len(order), folder.as_posix())


def _section(file: Path, root: Path) -> dict[str, Any]:
    page = Page.load(file)
    run = file.parent.relative_to(root).as_posix()
    blocks = [_block(block, file.parent) for block in page.blocks]
    return {"run": run, "title": page.title, "lead": page.lead, "blocks": blocks, "origin": _origin(file.parent)}


def _block(block: Block, folder: Path) -> dict[str, Any]:
    fields = {"kind": type(block).__name__, **vars(block)}
    if not isinstance(block, Figure):
        return fields
    try:
        return {**fields, "source": _data_uri(inside(folder, block.file))}
    except FileNotFoundError:
        raise ValueError(
            f"{folder / PAGE_FILE} shows {block.file}, which is not there; run its command again, or delete that page"
        ) from None


def _data_uri(image: Path) -> str:
    if image.suffix not in _IMAGE_TYPES:
        raise ValueError(f"expected a figure in {' or '.join(_IMAGE_TYPES)}, got {image}")
    return f"data:{_IMAGE_TYPES[image.suffix]};base64,{b64encode(read_bytes(image, expected='a figure')).decode()}"


def _origin(folder: Path) -> dict[str, str]:
    """Say where the numbers of a page come from, as its `metrics.json` has it; nothing without one."""
    file = folder / "metrics.json"
    if not file.exists():
        return {}
    try:
        metrics = read_json(inside(folder, file.name))
        versions = ", ".join(f"{name} {version}" for name, version in metrics["versions"].items())
        commit = metrics["commit"] or "not from a checkout"
        commit = commit if isinstance(commit, str) else ", ".join(commit)
        return {"command": metrics["command"], "versions": versions, "device": metrics["device"], "commit": commit}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is not the metrics of a run ({error!r}); run it again") from error
