"""Reach the attention of a transformers model, `nn.MultiheadAttention` or our slot, so that its rows can be watched.

A plain model is switched on with `Constant(1.0)`, which attends by PyTorch's own attention. A model that is sharpened
already keeps its policy: its sites get the gauge beside it. One that is sharpened later hands the gauge on.
"""

from torch import nn

from sharpmax.core.policies import Constant
from sharpmax.hf.sharpen.layers import attention_layers, is_attention
from sharpmax.hf.sharpen.site import runs_of, site_of
from sharpmax.hf.sharpen.switch import Sharpened, sharpen
from sharpmax.torch.watching.measure import Gauge
from sharpmax.torch.watching.watch import Layer

__all__ = ["Routed", "is_attention", "route"]


def route(model: nn.Module, gauge: Gauge) -> "Routed":
    """Reach every attention layer of a model.

    Raises:
        NotImplementedError: the model attends in a way that cannot be reached.
        RuntimeError: it is watched already, or only a part of it is sharpened.
    """
    return Routed(model, gauge)


class Routed:
    """A model whose attention tells a gauge of its rows."""

    def __init__(self, model: nn.Module, gauge: Gauge) -> None:
        self._model, self._gauge = model, gauge
        self._own: Sharpened | None = None
        if any(run.gauge is not None for run in runs_of(model)):
            raise RuntimeError(f"this {type(model).__name__} is watched already; close that watch first")
        layers = attention_layers(model)
        sites = [(layer, site_of(layer.module)) for layer in layers]
        if all(site is None for _, site in sites):
            self._own = sharpen(model, Constant(1.0))
        elif any(site is None or site.first_layer != layer.index for layer, site in sites):
            raise RuntimeError(
                f"only a part of this {type(model).__name__} is sharpened: watch that part, or watch the whole model "
                "before the part is sharpened"
            )
        for run in runs_of(model):
            run.gauge = gauge
        self.layers = [
            Layer(layer.name, layer.module, range(layer.index, layer.index + layer.runs)) for layer in layers
        ]

    def close(self) -> None:
        """Leave the model as it was.

        Raises:
            RuntimeError: the model was sharpened since it was watched, and still is.
        """
        if self._own is not None and self._own.is_on and not self._own.is_latest:
            raise RuntimeError(
                "this model was sharpened since it was watched, and still is; leave that block first, then close the "
                "watch"
            )
        for run in runs_of(self._model):
            if run.gauge is self._gauge:
                run.gauge = None
        if self._own is not None:
            self._own.restore()
