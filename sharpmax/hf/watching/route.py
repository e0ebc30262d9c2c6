"""Reach the attention of a transformers model, `nn.MultiheadAttention` or our slot, so that its rows can be watched.

A plain model is switched on with `Constant(1.0)`, which attends by PyTorch's own attention. A model that is sharpened
already keeps its policy: its sites get the gauge beside it.
"""

from torch import nn

from sharpmax.core.policies import Constant
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.sharpen.site import Run
from sharpmax.hf.sharpen.switch import Sharpened, sharpen
from sharpmax.torch.watching.measure import Gauge
from sharpmax.torch.watching.watch import Layer


def route(model: nn.Module, gauge: Gauge) -> "Routed":
    """Reach every attention layer of a model.

    Raises:
        NotImplementedError: the model attends in a way that cannot be reached.
        RuntimeError: it is watched already.
    """
    return Routed(model, gauge)


class Routed:
    """A model whose attention tells a gauge of its rows."""

    def __init__(self, model: nn.Module, gauge: Gauge) -> None:
        runs = {id(site.run): site.run for m in model.modules() if (site := m.__dict__.get("sharpmax_site"))}
        self._own: Sharpened | None = None
        if any(run.gauge is not None for run in runs.values()):
            raise RuntimeError(f"this {type(model).__name__} is watched already; close that watch first")
        if not runs:
            self._own = sharpen(model, Constant(1.0))
            runs = {0: self._own._run}
        self._runs: list[Run] = list(runs.values())
        for run in self._runs:
            run.gauge = gauge
        self.layers = [
            Layer(layer.name, layer.module, range(layer.index, layer.index + layer.runs))
            for layer in attention_layers(model)
        ]

    def close(self) -> None:
        """Leave the model as it was."""
        for run in self._runs:
            run.gauge = None
        if self._own is not None:
            self._own.restore()
