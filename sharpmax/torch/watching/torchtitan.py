"""torchtitan's attention, watched: overrides that its `--override.imports` takes by name.

    --override.imports sharpmax.torch.watching.torchtitan.watched_attention

The built model attends as before, by torchtitan's own code. `sharpmax.torch.watch(model)` then reaches its layers, and
`QKClip` their weights. Written for torchtitan 0.3: `ScaledDotProductAttention` and `VarlenAttention`. FlexAttention
hides its masks in functions of its own, so its rows are not read.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import ScaledDotProductAttention, VarlenAttention

from sharpmax.torch.watching.slot import Watchable


class WatchedSDPA(Watchable, ScaledDotProductAttention):
    """torchtitan's ScaledDotProductAttention, whose rows can be watched."""

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledDotProductAttention.Config):
        """That of ScaledDotProductAttention."""

    def forward(self, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, **options: Any) -> Tensor:
        """Attend as torchtitan does, (B, L, N, H) throughout, and tell the gauge of the rows."""
        if self.gauge is not None and self.gauge.counts:
            how: dict[str, Any] = {"is_causal": options.get("is_causal", True), "scale": options.get("scale")}
            self.gauge(self.layer, q_BLNH.transpose(1, 2), k_BLNH.transpose(1, 2), **how)
        output: Tensor = super().forward(q_BLNH, k_BLNH, v_BLNH, **options)
        return output


class WatchedVarlen(Watchable, VarlenAttention):
    """torchtitan's VarlenAttention, whose rows can be watched."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        """That of VarlenAttention."""

    def forward(
        self, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, *, attention_masks: Any, **options: Any
    ) -> Tensor:
        """Attend as torchtitan does, and tell the gauge of the documents' rows."""
        if self.gauge is not None and self.gauge.counts:
            left, right = self.window_size
            if right != 0:
                raise NotImplementedError("packed rows are watched where attention is causal: window_size (…, 0)")
            q, k = (x.flatten(0, 1).transpose(0, 1)[None] for x in (q_BLNH, k_BLNH))
            how: dict[str, Any] = {
                "is_causal": True,
                "scale": options.get("scale"),
                "window": None if left < 0 else left + 1,
            }
            self.gauge(self.layer, q, k, cumulative=attention_masks.cu_seq_q, **how)
        output: Tensor = super().forward(q_BLNH, k_BLNH, v_BLNH, attention_masks=attention_masks, **options)
        return output


@override(target=ScaledDotProductAttention.Config, description="attention that can be watched")  # type: ignore[untyped-decorator]
def watched_attention(config: Any) -> Any:
    """Return the config of watched attention in place of torchtitan's own."""
    return derive(config, WatchedSDPA.Config)


@override(target=VarlenAttention.Config, description="packed attention that can be watched")  # type: ignore[untyped-decorator]
def watched_varlen(config: Any) -> Any:
    """Return the config of watched attention of packed documents in place of torchtitan's own."""
    return derive(config, WatchedVarlen.Config)
