"""Who takes part in the attention benchmark: PyTorch's own attention, ours, and what others offer.

A contestant is data and a factory: given the setting it returns a call on (query, key, value). One that is not
installed, or fails, raises, and its row of the table says why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sharpmax import PAPER, Policy
from sharpmax.extras import extra
from sharpmax.torch import attention

with extra("torch"):
    import torch


@dataclass(frozen=True)
class Setting:
    """What the call is handed: (B, H, Lq, D) on (B, Hkv, Lk, D); `changes` to its logits are mask, sinks, softcap."""

    queries: int
    keys: int
    is_causal: bool
    device: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_decoding(self) -> bool:
        """Whether there is one query per sequence, with fewer key heads than query heads."""
        return self.queries == 1

    def changes_of(self, kind: str) -> Mapping[str, Any]:
        """Return what a contestant of this kind is asked for: plain attention a mask alone, and not of one query."""
        if kind != "plain":
            return self.changes
        return {} if self.is_decoding else {name: x for name, x in self.changes.items() if name == "mask"}


@dataclass(frozen=True)
class Contestant:
    """One row of the table: `kind` is what it computes, a key of `judging.COMPUTED`, or a `policy` of its own.

    One that `returns_stats` returns the output and its row statistics.
    """

    name: str
    kind: str
    build: Callable[[Setting], Callable[..., Any]]
    policy: Policy | None = None
    returns_stats: bool = False


def plain(device: str) -> list[Contestant]:
    """Return PyTorch's fused kernels: what every ratio is to."""
    names = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION") if device == "cuda" else ("FLASH_ATTENTION",)
    return [_stock(name) for name in names]


def named(*implementations: str) -> list[Contestant]:
    """Return sharpened attention by the implementations that are named."""
    return [_sharpmax(PAPER, "sharpened", name) for name in implementations]


def ours(
    device: str, policy: Policy = PAPER, kind: str = "sharpened", *, returns_stats: bool = False
) -> list[Contestant]:
    """Return sharpened attention: what dispatch takes on a GPU; on a CPU each implementation that streams.

    PyTorch's own kernels have not every statistic, as one asks who wants them, or who takes a policy of another kind.
    """
    names: tuple[str | None, ...] = (None,) if device == "cuda" else ("stock", "chunked")
    able = ("chunked", None) if returns_stats or kind == "policy" else names
    return [_sharpmax(policy, kind, name, returns_stats=returns_stats) for name in names if name in able]


def _stock(backend: str) -> Contestant:
    def build(setting: Setting) -> Callable[..., Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right
        from torch.nn.functional import scaled_dot_product_attention

        options: dict[str, Any] = {"is_causal": setting.is_causal}
        options["attn_mask"] = setting.changes_of("plain").get("mask")
        if setting.is_causal and setting.queries != setting.keys:
            options = {"attn_mask": causal_lower_right(setting.queries, setting.keys)}

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options)

        return call

    return Contestant(backend.lower(), "plain", build)


def _sharpmax(policy: Policy, kind: str, implementation: str | None, *, returns_stats: bool = False) -> Contestant:
    def build(setting: Setting) -> Callable[..., Any]:
        options = {
            "policy": policy,
            "is_causal": setting.is_causal,
            "implementation": implementation,
            "return_stats": returns_stats,
            **setting.changes,
        }
        return lambda *tensors: attention(*tensors, **options)

    return Contestant(implementation or "", kind, build, policy, returns_stats)


def _flex(setting: Setting) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    call = torch.compile(flex_attention, dynamic=False)
    if not setting.is_causal:
        return lambda q, k, v: call(q, k, v, enable_gqa=setting.is_decoding)

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    mask = create_block_mask(causal, None, None, setting.queries, setting.keys, device=setting.device)
    return lambda q, k, v: call(q, k, v, block_mask=mask)


def _dense(setting: Setting, weights: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return attention as people write it: every logit in memory, `weights` in float32."""

    def call(q: Any, k: Any, v: Any) -> Any:
        if setting.is_decoding:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        logits = (q @ k.mT).float() * q.shape[3] ** -0.5
        if setting.is_causal:
            hidden = torch.ones(setting.queries, setting.keys, dtype=torch.bool, device=q.device).triu(1)
            # Not -inf: times the gradient of beta it would be NaN.
            logits = logits.masked_fill(hidden, -1e9)
        return weights(logits).to(v.dtype) @ v

    return call


def _rule_by_hand(logits: Any) -> Any:
    """The paper's listing: softmax, entropy with an epsilon, the polynomial, softmax again."""
    p = torch.softmax(logits, -1)
    H = -(p * torch.log(p + 1e-9)).sum(-1, keepdim=True)
    polynomial = torch.zeros_like(H)
    for coefficient in (-0.037, 0.481, -2.3, 4.917, -1.791):
        polynomial = polynomial * H + coefficient
    beta = torch.where(H > 0.5, polynomial.clamp(min=1.0), 1.0)
    return torch.softmax(beta * logits, -1)


def _entmax(setting: Setting) -> Callable[..., Any]:
    from entmax import entmax15

    return _dense(setting, lambda logits: entmax15(logits, dim=-1))


def _adasplash(setting: Setting) -> Callable[..., Any]:
    from adasplash import adasplash

    if setting.is_decoding:
        raise NotImplementedError("adasplash has as many queries as keys")
    return lambda *tensors: adasplash(*tensors, alpha=1.5, is_causal=setting.is_causal)


OTHERS: dict[str, Contestant] = {
    "math": Contestant("math (dense SDPA)", "plain", _stock("MATH").build),
    "flex": Contestant("FlexAttention, compiled", "plain", _flex),
    "by-hand": Contestant("the paper's rule by hand", "sharpened", lambda setting: _dense(setting, _rule_by_hand)),
    "compiled": Contestant(
        "the paper's rule, torch.compile",
        "sharpened",
        lambda setting: torch.compile(_dense(setting, _rule_by_hand), dynamic=False),
    ),
    "entmax": Contestant("entmax, dense", "entmax", _entmax),
    "adasplash": Contestant("adasplash", "entmax", _adasplash),
}
"""By the name that `--only` takes; plain attention, the paper's rule, and 1.5-entmax, as others write them."""
