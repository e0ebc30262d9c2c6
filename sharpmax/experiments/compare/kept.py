"""The cells of a run folder: records in `steps/`, why a cell failed in `failed/`, records of other code set aside."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.arms import arm_named
from sharpmax.experiments.compare.outside import file_of
from sharpmax.experiments.compare.plan import Cell
from sharpmax.files import atomic
from sharpmax.files.untrusted import read_json
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder


class Cells:
    """What is known of each cell."""

    def __init__(self, folder: RunFolder) -> None:
        """Look into a run folder."""
        self.folder = folder

    def scratch(self, cell: Cell) -> Path:
        """Return where the checkpoints of a cell's weights are."""
        return self.folder.path / "training" / cell.trained.name

    def missing(self, wanted: Sequence[Cell]) -> list[Cell]:
        """Return those that have no record yet; one that failed has none."""
        return [cell for cell in wanted if not self.folder.has(cell.name)]

    def keep(self, cell: Cell, record: dict[str, Any] | Exception) -> None:
        """Write a record, or why there is none."""
        failure = self._failures / f"{cell.name}.json"
        if isinstance(record, Exception):
            said = {**asdict(cell), "label": arm_named(cell.arm).label}
            atomic.write_json(failure, {**said, "error": f"{type(record).__name__}: {record}"})
        else:
            self.folder.once(cell.name, partial(dict, record))
            failure.unlink(missing_ok=True)

    def records(self) -> list[dict[str, Any]]:
        """Return all records."""
        return [self.folder.read(key) for key in self.folder.steps]

    def failed(self) -> list[dict[str, Any]]:
        """Return the fields, the label and the error of each cell that failed and has no record since."""
        return [read_json(file) for file in sorted(self._failures.glob("*.json"))]

    def set_aside_other_code(self, wanted: Iterable[Cell]) -> None:
        """Move what other code of a mechanism computed to `other-code/`, so that none of its numbers is shown."""
        sources = {cell.arm: cell.source for cell in wanted if cell.source is not None}
        said = set()
        for key in self.folder.steps:
            record = self.folder.read(key)
            arm = record["arm"]
            if arm not in sources or record.get("source") == sources[arm]:
                continue
            (aside := self.folder.path / "other-code").mkdir(exist_ok=True)
            (self.folder.path / "steps" / f"{key}.json").replace(aside / f"{key}.json")
            if arm not in said:
                report_as("compare")(f"{file_of(arm)} changed since: training {arm} again")
            said.add(arm)
        for file in self._failures.glob("*.json"):
            failure = read_json(file)
            if failure["arm"] in sources and failure["source"] != sources[failure["arm"]]:
                file.unlink()

    @property
    def _failures(self) -> Path:
        return self.folder.path / "failed"
