"""Tables that say by which commit and command each committed record was made."""

from functools import partial

from tools.tables.records import RESULTS, TABLES, commit_of, markdown, read


def _sources(folder: str) -> str:
    """Return file, command, device and commit of every record in a folder of results/."""
    rows = []
    for file in sorted((RESULTS / folder).glob("*/*.json")):
        record = read(*file.relative_to(RESULTS).parts)
        if not isinstance(record, dict) or "commit" not in record or "command" not in record:
            continue
        command = record["command"].replace("python -m sharpmax ", "sharpmax ")
        name = file.relative_to(RESULTS / folder).as_posix()
        rows.append([f"`{name}`", f"`{command}`", record["device"], commit_of(record)])
    return markdown(["file", "command", "device", "commit"], rows)


for _folder in (
    "alternatives",
    "attention",
    "attention-jax",
    "calibration",
    "certify",
    "clrs-text",
    "compare",
    "context",
    "diagnose",
    "evaluate",
    "laws",
    "max-retrieval",
    "model",
    "serving",
    "watch",
):
    TABLES[f"sources-{_folder}"] = partial(_sources, _folder)
