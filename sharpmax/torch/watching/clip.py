"""QK-clip: after the optimiser's step, scale down the query and key weights of heads whose logits grew too large.

    γ = min(1, threshold / maximum)        per head, from the exact maximum over the rows of the step

As in MuonClip (Kimi K2, arXiv 2507.20534), for any optimiser. All of it happens on the device; nothing waits.

    clip = sharpmax.torch.QKClip(model, threshold=100)
    …
    optimizer.step()
    clip.step(loss=loss)
"""

from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from sharpmax.core.checks import is_number
from sharpmax.torch.watching.head_weights import HeadWeights, head_weights
from sharpmax.torch.watching.slot import Watchable
from sharpmax.torch.watching.watch import Layer, Watch, watch


class QKClip:
    """Keeps every head's largest logit at a threshold, by its weights; heads below it stay bit-equal.

    A head's rows are measured in the forward pass of a step, and its weights are scaled after that step. So the next
    maximum may pass the threshold by what the optimiser added since.

    Args:
        model: what to clip, watched at every step; or a `Watch`, whose steps, record and guards are then used.
        threshold: the largest logit that is left alone.
        options: of `sharpmax.torch.watch`, where a model is given.

    Raises:
        NotImplementedError: at the first step, a head whose logits are not known to be linear in weights of its own.
        ValueError: a threshold that is not positive and finite.
    """

    def __init__(self, model: nn.Module | Watch, threshold: float = 100.0, **options: Any) -> None:
        if not is_number(threshold) or threshold <= 0:
            raise ValueError(f"expected a positive threshold, a finite number, got {threshold!r}")
        if isinstance(model, Watch) and options:
            raise TypeError(f"{', '.join(options)}: options of watch; give them where the watch is made")
        self.threshold = float(threshold)
        self.watch = model if isinstance(model, Watch) else watch(model, **options)
        self._weights: list[tuple[Layer, HeadWeights]] | None = None

    def step(self, *, loss: Any = None) -> None:
        """End a training step: clip what was measured in it, after `optimizer.step()`. It calls `watch.step`."""
        found = self.watch.take() if self.watch.gauge.measuring else None
        scaled = None if found is None else self._clip(found.maximum)
        self.watch.end_step(found, loss=loss, scaled=scaled)

    def close(self) -> None:
        """Stop watching."""
        self.watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @torch.no_grad()
    def _clip(self, maximum: Tensor) -> Tensor:
        """Scale the weights for the maxima of all heads, and return the factors."""
        counts = [len(self.watch.gauge.layers[layer].maximum) for layer in sorted(self.watch.gauge.layers)]
        if self._weights is None:
            self._weights = [(layer, self._weights_of(layer, counts)) for layer in self.watch.layers]
        factors = torch.split(torch.where(maximum > self.threshold, self.threshold / maximum, 1.0), counts)
        applied = list(factors)
        for layer, weights in self._weights:
            together = torch.stack([factors[index] for index in layer.indices]).amin(0)  # of all layers that it runs as
            done = weights.scale(together)
            for index in layer.indices:
                applied[index] = done
        return torch.cat(applied)

    def _weights_of(self, layer: Layer, counts: list[int]) -> HeadWeights:
        owner: Any = layer.module
        if isinstance(owner, Watchable) or type(owner).__module__.startswith("sharpmax."):  # a slot
            owner = self.watch.model.get_submodule(layer.name.rpartition(".")[0])
        return head_weights(owner, counts[layer.indices[0]], layer.name)
