"""QK-clip: after the optimiser's step, scale down the query and key weights of heads whose logits grew too large.

    γ = min(1, threshold / maximum)        per head, from the exact maximum over the rows of the step

As in MuonClip (Kimi K2, arXiv 2507.20534), for any optimiser. All of it happens on the device; nothing waits.

    clip = sharpmax.torch.QKClip(model, threshold=100)
    …
    optimizer.step()
    clip.step(loss=loss)
"""

import warnings
from operator import is_
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax.core.checks import is_number
from sharpmax.runs.watched import Reading
from sharpmax.torch.watching.guard import AttentionWarning
from sharpmax.torch.watching.head_weights import HeadWeights, head_weights, must_be_apart
from sharpmax.torch.watching.slot import Watchable
from sharpmax.torch.watching.watch import Layer, Watch, check_loss, watch

ACTED, STAYED, PATIENCE = 0.5, 0.9, 3
"""A clip is in vain that multiplies a head's logits by half or less, and leaves its largest at nine tenths or more, at
so many readings in a row."""


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
        self._weights: dict[Layer, tuple[list[nn.Parameter], HeadWeights]] = {}
        self._in_vain: np.ndarray | None = None
        self._last: Reading | None = None
        self._said = False
        self.watch.listeners.append(self._look_back)

    def step(self, *, loss: Any = None) -> None:
        """End a training step: clip what was measured in it, after `optimizer.step()`. It calls `watch.step`."""
        check_loss(loss)
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
        counts = self.watch.heads()
        factors = torch.split(torch.where(maximum > self.threshold, self.threshold / maximum, 1.0), list(counts))
        applied = list(factors)
        ran = [layer for layer in self.watch.layers if any(counts[index] for index in layer.indices)]
        of = {layer.name: self._weights_of(layer, counts) for layer in ran}
        must_be_apart(of)
        for layer in ran:
            runs = [index for index in layer.indices if counts[index]]
            together = torch.stack([factors[index] for index in runs]).amin(0)  # of all layers that it runs as
            done = of[layer.name].scale(together)
            for index in runs:
                applied[index] = done
        return torch.cat(applied)

    def _weights_of(self, layer: Layer, counts: tuple[int, ...]) -> HeadWeights:
        """Return the weights of a layer's heads, found anew where its parameters are others than at the step before."""
        owner: Any = layer.module
        if isinstance(owner, Watchable) or type(owner).__module__.startswith("sharpmax."):  # a slot
            owner = self.watch.model.get_submodule(layer.name.rpartition(".")[0])
        parameters, (known, weights) = list(owner.parameters()), self._weights.get(layer, ([], None))
        if weights is None or not (len(known) == len(parameters) and all(map(is_, known, parameters))):
            heads = next(counts[index] for index in layer.indices if counts[index])
            weights = head_weights(owner, heads, layer.name)
            self._weights[layer] = parameters, weights
        return weights

    def _look_back(self, step: int, reading: Reading) -> None:
        """Warn, once, of a head that was clipped again and again and whose largest logit did not fall."""
        last, self._last = self._last, reading
        if last is None or last.scaled is None or last.heads != reading.heads:
            self._in_vain = None
            return
        in_vain = (last.scaled < ACTED) & (reading.maximum > STAYED * last.maximum)
        before = np.zeros(len(in_vain), int) if self._in_vain is None else self._in_vain
        self._in_vain = np.where(in_vain, before + 1, 0)
        if (self._in_vain == PATIENCE).any() and not self._said:
            self._said = True
            layer, head = reading.places()[int(np.argmax(self._in_vain == PATIENCE))]
            warnings.warn(
                f"layer {layer}, head {head} was clipped {PATIENCE} times to half or less, and its largest logit is as "
                f"large as before (step {step}): its queries or keys are not linear in the weights that are scaled",
                AttentionWarning,
                stacklevel=6,
            )
