"""A run on disk: `root/<experiment>/<name>/` with its config, its results step by step, and its metrics.

A run that was killed continues: steps already on disk are read back, the rest are computed, and the numbers at the end
are those of a run that was never interrupted, provided each step draws from its own seed. Steps and metrics carry a
checksum: what was edited or damaged since is refused.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sharpmax
from sharpmax.files import atomic, checksums
from sharpmax.files.untrusted import read_json
from sharpmax.runs.progress import stage
from sharpmax.runs.provenance import commit, provenance

AGAIN = "delete it to compute it again"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Make it with `RunFolder.open`.

    >>> run = RunFolder.open("runs", "bounds", "seed0", {"seed": 0})     # doctest: +SKIP
    >>> squares = run.every("squares", {f"square-{n}": lambda n=n: n * n for n in range(3)})     # doctest: +SKIP
    >>> run.finish({"squares": squares})     # doctest: +SKIP
    """

    path: Path
    config: Mapping[str, Any]
    grows: str | None = None

    @classmethod
    def open(
        cls, root: str | Path, experiment: str, name: str, config: Mapping[str, Any], *, grows: str | None = None
    ) -> "RunFolder":
        """Start the run `root/<experiment>/<name>/`, or continue it if it was started with the same config.

        `grows` names a list in the config that may have gained items since: what each item gave is kept, and the run is
        from now on the longer one.

        Raises:
            ValueError: if the folder holds a run with another config, or a config that cannot be read.
            OSError: if the folder cannot be written.
        """
        return cls.planned(root, experiment, name, config, grows=grows).begin()

    @classmethod
    def planned(
        cls, root: str | Path, experiment: str, name: str, config: Mapping[str, Any], *, grows: str | None = None
    ) -> "RunFolder":
        """Return the run that `open` would start, or raise what it would; `begin` starts it.

        For work that may still turn out impossible: until then nothing is left behind, neither an empty folder nor one
        with nothing but a config, which would bar another one.
        """
        path = Path(root) / _plain(experiment) / _plain(name)
        # Through JSON and back, so that a tuple equals the list it is stored as.
        wanted = json.loads(json.dumps({"sharpmax": sharpmax.__version__, **config}))
        with _writing(path):
            atomic.require_folder(path)
        run = cls(path, wanted, grows)
        if run._stored() is None and run.steps:
            raise ValueError(
                f"{path} holds steps of a run and no config.json, so nobody knows of which; delete that folder, or "
                "choose another --out"
            )
        return run

    def begin(self) -> "RunFolder":
        """Write the config, unless it is there, and return the run; as `open` where another one came in between."""
        if self._stored() != self.config:
            with _writing(self.path):
                atomic.write_json(self.path / "config.json", self.config)
        return self

    @property
    def steps(self) -> list[str]:
        """The keys of what earlier calls of this run already have, in the order of their names."""
        return sorted(file.stem for file in (self.path / "steps").glob("*.json"))

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return `compute()`, which must be JSON, from disk if an earlier call of this run already has it.

        The value always passes through JSON, so a fresh run and a continued one see the same thing. The colon of a
        task's name is a dash on disk.
        """
        if not self.has(key):
            checksums.write_sealed(self._step(key), {"commit": commit(), "value": compute()})
        return self.read(key)

    def every(self, name: str, steps: Mapping[str, Callable[[], Any]]) -> list[Any]:
        """Return `once` of every step, by its key, in their order; a stage of this name shows how far it is."""
        found = []
        with stage(name, len(steps)) as advance:
            for key, compute in steps.items():
                found.append(self.once(key, compute))
                advance(note=key)
        return found

    def has(self, key: str) -> bool:
        """Tell whether an earlier call of this run already has it."""
        return self._step(key).exists()

    def read(self, key: str) -> Any:
        """Return what `once` kept."""
        return _read_step(self._step(key))["value"]

    def _stored(self) -> Mapping[str, Any] | None:
        """Return the config on disk, or raise ValueError with every setting in which it differs, but for what grows."""
        if (stored := stored_config(self.path)) is None:
            return None
        differing = [
            f"{key}: {there!r} there, {here!r} here"
            for key in sorted(stored.keys() | self.config.keys())
            if (there := stored.get(key, "nothing")) != (here := self.config.get(key, "nothing"))
            and not (key == self.grows and _holds_all(here, there))
        ]
        if differing:
            raise ValueError(
                f"{self.path} holds a run with another config ({'; '.join(differing)}); choose another --out, or "
                "delete that folder"
            )
        return stored

    def _step(self, key: str) -> Path:
        return self.path / "steps" / f"{_plain(key.replace(':', '-'))}.json"

    def finish(self, metrics: Mapping[str, Any], *, commits: Collection[str] = ()) -> Path:
        """Write `metrics.json`: the metrics with the config, seed, versions, device, commit and command.

        Where steps, or what `commits` tells of, were computed by other commits than this one, `commit` lists them all.
        """
        file = self.path / "metrics.json"
        origin = provenance()
        stepped = {_read_step(self._step(key))["commit"] for key in self.steps} | {origin["commit"]}
        known = {each or "unknown" for each in stepped} | set(commits)
        if len(known) > 1:
            origin["commit"] = sorted(known)
        about = {"config": self.config, "seed": self.config.get("seed"), **origin}
        if taken := sorted(about.keys() & metrics.keys()):
            raise ValueError(f"metrics may not be named {', '.join(taken)}: those say where the numbers come from")
        checksums.write_sealed(file, {**about, **metrics})
        return file


def read_metrics(path: Path) -> dict[str, Any] | None:
    """Return what `finish` wrote into the folder of a run; None if that run is not finished."""
    file = path / "metrics.json"
    if not file.exists():
        return None
    return _read_sealed(file, "the metrics of a run", frozenset())


def stored_config(path: Path) -> dict[str, Any] | None:
    """Return the config of the run in the folder `path`; None if there is no run."""
    file = path / "config.json"
    if not file.exists():
        return None
    stored = _read(file)
    if not isinstance(stored, dict):
        raise ValueError(f"expected an object in {file}, got {type(stored).__name__}; choose another --out")
    return stored


def run_name(model: str) -> str:
    """Return a plain name for a run on a model: a built-in name, a hub's, or the path of a folder.

    >>> run_name("google/gemma-2b"), run_name("my models/fine tuned")
    ('gemma-2b', 'fine-tuned')
    """
    path = Path(model)
    name = path.resolve().name if path.is_dir() else path.name
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).lstrip("._=+-") or "model"


def scale_name(quick: bool, seed: int, **changed: Any) -> str:
    """Return a name for a run at a scale, with the options that were given; None was not.

    >>> scale_name(True, 0), scale_name(False, 3, seeds=2, rate=0.15, steps=None)
    ('quick-seed0', 'full-seed3-seeds2-rate0.15')
    """
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in changed.items()}
    said = [f"{name}{value}" for name, value in shown.items() if value is not None]
    return "-".join([f"{'quick' if quick else 'full'}-seed{seed}", *said])


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"cannot write the run folder {path}: {error.strerror or error}; choose another one with --out"
        ) from error


def _plain(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"expected a plain file name (letters, digits, . _ = + -), got {name!r}")
    return name


def _read(file: Path) -> Any:
    return read_json(file, advice=AGAIN)


def _read_step(file: Path) -> dict[str, Any]:
    return _read_sealed(file, "a step of a run", {"commit", "value"})


def _read_sealed(file: Path, what: str, fields: Set[str]) -> dict[str, Any]:
    content = _read(file)
    if not isinstance(content, dict) or not content.keys() >= fields:
        raise ValueError(f"{file} is not {what}; {AGAIN}")
    return checksums.require_sealed(file, content, AGAIN)


def _holds_all(longer: Any, shorter: Any) -> bool:
    return isinstance(longer, list) and isinstance(shorter, list) and all(item in longer for item in shorter)
