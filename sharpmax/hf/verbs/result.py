"""Hold what a verb found: its numbers, where they are kept, and the ways to show them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpmax.builtin import weights_of
from sharpmax.core.checks import short
from sharpmax.extras import MissingExtraError
from sharpmax.hf.calibration import answers, exams
from sharpmax.hf.models.load import LoadedModel, load, must_be_in_evaluation
from sharpmax.hf.sharpen.switch import extension_on
from sharpmax.hf.verbs import sizes
from sharpmax.runs.progress import stage


@dataclass(frozen=True)
class Result:
    """What a verb found.

    Attributes:
        metrics: everything that `metrics.json` holds of it; `result["verdict"]` reads one entry.
        folder: the run folder.
        model: the model's name.
    """

    metrics: dict[str, Any]
    folder: Path
    model: str

    def __getitem__(self, name: str) -> Any:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def summary(self) -> str:
        """Return what was found, in a few lines."""
        raise NotImplementedError

    def next_step(self) -> str:
        """Return the command to type next, and why."""
        raise NotImplementedError

    def display(self) -> Any:
        """Return the display that `plot` draws; None where there is nothing to draw."""
        raise NotImplementedError

    def page(self) -> Any:
        """Return the page, as `sharpmax.report.Page`."""
        raise NotImplementedError

    def plot(self, ax: Any = None) -> Any:
        """Draw the figure on `ax`, or on new axes, and return them.

        Raises:
            ValueError: there is nothing to draw, as where no candidate was worth judging.
        """
        display = self.display()
        if display is None:
            raise ValueError(f"there is nothing to draw: {self.summary().splitlines()[0]}")
        return display.plot(ax)

    def save_page(self, file: str | Path | None = None) -> Path:
        """Write the page as one HTML file that works offline; into the run folder unless a file is given."""
        from sharpmax.report.html import write_page

        self.page().save(self.folder)
        return write_page(self.folder, Path(file or self.folder / "page.html"))

    def closing(self) -> str:
        """Return the last lines of a command: where the result is, and what to type next."""
        return f"result: {self._saved()}\nnext: {self.next_step()}"

    def _saved(self) -> str:
        try:
            with stage("writing the page"):
                return str(self.save_page())
        except MissingExtraError:
            return f"{self.folder / 'metrics.json'} (for a page: pip install 'sharpmax[report]')"

    def _weights(self) -> str:
        """Say of which weights the figures are, where a built-in model is not the published one."""
        return weights_of(self.model)


def must_be_list(name: str, values: Any) -> None:
    """Raise TypeError for one value in the place of several: a text would be taken letter by letter."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"expected {name} as a list, got {short(values)}; one alone is [{short(values)}]")


def name_of(model: str | LoadedModel) -> str:
    """Return the name of a verb's model; TypeError for what is neither a name nor a loaded model."""
    if isinstance(model, LoadedModel):
        return model.name
    if not isinstance(model, str):
        raise TypeError(
            "expected the name or the folder of a model as text, or a LoadedModel(name, model, tokenizer), got "
            f"{short(model)}"
        )
    return model


def loaded_model(model: str | LoadedModel, accept_license: bool, device: str | None) -> LoadedModel:
    """Return the model, loaded if it is a name.

    Raises:
        ValueError: its dropout is on, or its context is extended: figures would not be of the model that they name.
        TypeError: neither a name nor a loaded model.
    """
    for tokens in (answers.remembered, exams.ids_of, sizes.question_tokens):
        tokens.cache_clear()  # a tokenizer may have got new words since, and a model is not kept for what was asked
    if isinstance(model, LoadedModel):
        must_be_in_evaluation(model)
        if (on := extension_on(model.model)) is not None:
            raise ValueError(
                f"{model.name} is extended by {short(on)}, and would be taken for the model as it is: leave that block "
                "first"
            )
        return model
    with stage(f"loading {name_of(model)}"):
        return load(name_of(model), accept_license=accept_license, device=device)
