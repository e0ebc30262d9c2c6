"""A site: what a sharpened attention module carries, and the one call that all ways of attending end in."""

import math
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import sharpmax.torch
from sharpmax.core.extension import Extension
from sharpmax.core.policies import Constant
from sharpmax.core.policies.base import Policy
from sharpmax.core.softmax import SilentPolicyWarning
from sharpmax.core.stats import RowStats
from sharpmax.hf.sharpen.late_rotation import LateRotation
from sharpmax.hf.sharpen.paged import Batch
from sharpmax.hf.sharpen.under_way import UnderWay
from sharpmax.torch.documents import Documents
from sharpmax.torch.paged import paged_attention
from sharpmax.torch.per_head import with_tensors
from sharpmax.torch.policy_kinds import constant_beta, numbers_of_now
from sharpmax.torch.prepared import Prepared, key_of, prepare
from sharpmax.torch.request import Request
from sharpmax.torch.torch_internals import recomputing
from sharpmax.torch.varlen import attend_packed, attention_varlen, packed_request, packed_statistics
from sharpmax.torch.watching.measure import Gauge

Observer = Callable[[int, RowStats], None]
"""Receives a layer's index and the statistics (batch, head, query) of each of its calls."""

Probe = Callable[[int, Tensor, Tensor, dict[str, Any]], None]
"""Receives a layer's index, query, key and the other arguments of each attention call, before it is made."""

KeyBias = Callable[[int, Tensor], Tensor]
"""Returns what to add to the logits of a layer by its index and its keys, (1, heads, 1, keys)."""


class Pass(threading.local):
    """What the forward pass of one thread has done so far; another thread's is another."""

    def __init__(self) -> None:
        self.depth = 0  # of passes within one another: a model's, and those of models inside it
        self.in_forward = False
        self.with_graph = False  # whether it is one to differentiate
        self.asked = False  # whether a layer has attended
        self.ran: dict[int, int] = {}  # how often a module that serves many layers has attended, by its first layer

    def __reduce__(self) -> tuple[type, tuple[()]]:  # a copy of a model has passes of its own
        return type(self), ()


@dataclass
class Run:
    """What one `sharpen` keeps while it is on: its observer, its implementation, and what happened since.

    Inside a compiled graph nothing here is written: a number that changes from call to call is a graph for each call.
    """

    observer: Observer | None = None
    implementation: str | None = None
    probe: Probe | None = None
    gauge: Gauge | None = None
    key_bias: KeyBias | None = None
    calls: int = 0
    owed: int = 0
    """Calls without a graph in a pass to differentiate; reentrant gradient checkpointing has yet to run them again."""
    highest_entropy: float = 0.0
    """Of the rows that their policy leaves alone, because it switches itself off there."""
    now: Pass = field(default_factory=Pass)
    under_way: UnderWay = field(default_factory=UnderWay)

    def note_call(self, *, again: bool) -> None:
        """Count a call; `again`: it is one of gradient checkpointing's."""
        self.now.asked = True
        with _counting:
            self.calls += 1
            if again:
                self.owed = max(0, self.owed - 1)
            elif self.now.with_graph and not torch.is_grad_enabled():
                self.owed += 1

    def note_entropy(self, entropy: float) -> None:
        """Keep the highest entropy of a row that is left alone."""
        with _counting:
            self.highest_entropy = max(self.highest_entropy, entropy)


_counting = threading.Lock()


@dataclass
class Site:
    """One attention module: the policies of the layers that it runs as, as they were given and where it runs."""

    run: Run
    first_layer: int
    given: tuple[Policy, ...]
    place: torch.device
    extension: Extension | None = None
    late: LateRotation | None = None
    """Where queries and keys come as they were projected: what turns them."""
    looked_at: dict[int, int] = field(default_factory=dict)
    """How many keys the rows had whose entropies were noted last, by layer."""

    def __post_init__(self) -> None:
        self.policies = tuple(with_tensors(policy, self.place) for policy in self.given)
        self.all_one = all(constant_beta(policy) == 1 for policy in self.policies)
        self.prepared: dict[tuple[Any, ...], tuple[Tensor | None, Prepared | None]] = {}
        """By kind of call: the numbers of then, and what executes it; None where none can."""

    @property
    def is_alone(self) -> bool:
        """Whether nobody looks on, asks for an implementation, or adds to the logits; an observer may come later."""
        run = self.run
        return run.observer is None and run.probe is None and run.implementation is None and not run.key_bias

    @property
    def is_plain(self) -> bool:
        """Whether the module then attends as if it were not sharpened."""
        return self.all_one and self.is_alone

    @property
    def one_policy(self) -> Policy | None:
        """The policy of every call, where nothing but the call decides how it attends."""
        return self.policies[0] if len(self.policies) == 1 and self.late is None and self.is_alone else None

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the prepared calls: a copy, or a model that is saved, prepares its own."""
        return {**self.__dict__, "prepared": {}}

    def looks_at(self, layer: int, policy: Policy, keys: int) -> bool:
        """Tell whether to note which rows of so many keys a policy that switches itself off leaves alone.

        Rows of too few keys cannot be among them. Others are looked at once, and again where keys are an eighth more:
        enough to say so on leaving, too little to cost.
        """
        point = policy.silent_above
        return point is not None and math.log(keys + 1) > point and 8 * keys > 9 * self.looked_at.get(layer, 0)

    def note_silent(self, layer: int, policy: Policy, keys: int, entropy: Tensor) -> None:
        """Note the highest entropy of rows that the policy leaves alone."""
        silent = policy.silent_on(RowStats(entropy=entropy.detach()))
        if silent is not None:
            self.run.note_entropy(float(entropy.detach().masked_fill(~silent, 0.0).max()))
        self.looked_at[layer] = keys

    def next_layer(self, device: torch.device) -> tuple[int, Policy]:
        """Return the index and policy of the layer that attends now, with arrays on the device."""
        if self.place != device:  # once: the weights of an offloaded module do not say where it runs
            self.place = device
            self.__post_init__()
        if len(self.policies) == 1:
            return self.first_layer, self.policies[0]
        now = self.run.now
        if not now.in_forward:
            what = (
                "gradient checkpointing runs it again without saying as which; switch gradient checkpointing off"
                if recomputing()
                else "it was called without saying as which; call the whole model"
            )
            raise NotImplementedError(f"one module serves many layers here, and {what}")
        index = now.ran.get(self.first_layer, 0) % len(self.policies)
        now.ran[self.first_layer] = index + 1
        return self.first_layer + index, self.policies[index]


def site_of(module: nn.Module) -> Site | None:
    """Return what a sharpened module carries."""
    site = module.__dict__.get("sharpmax_site")
    return site if isinstance(site, Site) else None


def sites_of(model: nn.Module) -> list[Site]:
    """Return what the modules of a model carry while it, or a part of it, is sharpened."""
    return [site for module in model.modules() if (site := site_of(module)) is not None]


def runs_of(model: nn.Module) -> list[Run]:
    """Return what the sharpenings keep that are on in a model."""
    return list({id(site.run): site.run for site in sites_of(model)}.values())


def attend_at(
    site: Site, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None,
    batch: Batch | None = None, ends: tuple[Tensor, Tensor] | None = None, positions: Tensor | None = None,
    plainly: Callable[[], Tensor] | None = None, counted: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    """Attend with the site's policy, (B, H, L, D) as `sharpmax.torch.attention`, and tell the observer.

    A row of many sequences comes in three kinds: `documents` that fused kernels keep apart, a `batch` whose keys lie in
    a paged cache, or the `ends` of its queries and keys. `positions` (B, L) are the model's own, where they are not the
    indices among the keys: after padding, and in a cache that is longer than the text. `plainly` attends as if the
    module were not sharpened, where that is the same. `counted`: a watch has these rows already.

    Gradient checkpointing calls it again in the backward pass: probe and observer are told of the first call only, but
    the same is computed, because autograd compares the two graphs.
    """
    layer, policy = site.next_layer(query.device)
    if options.get("mask") is not None and documents is None and batch is None and "position" in policy.needs:
        policy = _at_positions(policy, positions, query, key)
    run, again = site.run, recomputing()
    if run.key_bias is not None:
        added, given = run.key_bias(layer, key), options.get("bias")
        options["bias"] = added if given is None else given + added
    kind = (documents, batch, ends)
    if not torch.compiler.is_compiling():
        run.note_call(again=again)
        if policy.silent_above is not None and query.numel() and not _is_captured(query):
            keys = key.shape[2] if batch is None else batch.pages.longest or 0
            if site.looks_at(layer, policy, keys):
                site.note_silent(layer, policy, keys, _entropy(site, query, key, kind, options))
    if run.gauge is not None and run.gauge.counts and not (again or counted):
        _count_rows(run.gauge, layer, query, key, kind, options)
    if plainly is not None:
        return plainly()
    if run.probe is not None and not again:
        run.probe(layer, query, key, options)
    if site.is_alone and kind == (None, None, None):
        prepared = _prepared(site, layer, policy, query, key, value, options)
        if prepared is not None:
            return prepared(query, key, value, options.get("mask"))
    asked = {**options, "policy": policy, "implementation": run.implementation}
    if run.observer is None:
        output: Tensor = _attention(query, key, value, kind, **asked)
        return output
    with warnings.catch_warnings():  # said once, on leaving
        warnings.simplefilter("ignore", SilentPolicyWarning)
        output, stats = _attention(query, key, value, kind, return_stats=True, **asked)
    if not again:
        run.observer(layer, stats)
    return output


def attend_one(
    site: Site, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor | None:
    """Attend with one query each, (B, H, 1, D), as in a call before; None where there was none like it.

    What `attend_at` would do, without asking again what that call has settled: the host's time is most of decoding.
    """
    policy, run = site.one_policy, site.run
    if policy is None or torch.compiler.is_compiling() or run.gauge is not None:
        return None
    if site.looks_at(site.first_layer, policy, key.shape[2]):
        return None
    if mask is not None and "position" in policy.needs:
        return None
    of = key_of(query, key, value, mask, site.first_layer, False, scale, None)
    if of is None:
        return None
    numbers, call = site.prepared.get(of, UNPREPARED)
    if call is None or numbers is not numbers_of_now(policy):
        return None
    run.note_call(again=False)
    return call(query, key, value, mask)


def _count_rows(gauge: Gauge, layer: int, query: Tensor, key: Tensor, kind: "Kind", options: dict[str, Any]) -> None:
    documents, batch, ends = kind
    if batch is not None:
        raise NotImplementedError("rows of a paged cache are not watched: end the watch, or generate by model.generate")
    if ends is not None and ends[0] is not ends[1] and query.shape[2] != key.shape[2]:
        raise NotImplementedError("packed rows are watched where each document has as many queries as keys")
    gauge(layer, query, key, documents=documents, cumulative=None if ends is None else ends[0], **options)


def _prepared(
    site: Site, layer: int, policy: Policy, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Prepared | None:
    """Return what executes a call like one before, if it is one; the first of its kind is prepared here."""
    if options.get("bias") is not None or options.get("sinks") is not None or options.get("dropout"):
        return None
    mask = options.get("mask")
    how = {"is_causal": options["is_causal"], "scale": options.get("scale"), "softcap": options.get("softcap")}
    of = key_of(query, key, value, mask, layer, *how.values())
    if of is None:
        return None
    kept = site.prepared.get(of)
    if kept is not None and kept[0] is numbers_of_now(policy):
        return kept[1]
    call = prepare(query, key, value, mask, policy=policy, **how)
    if len(site.prepared) >= MOST_PREPARED:
        site.prepared.clear()
    site.prepared[of] = (numbers_of_now(policy), call)
    return call


UNPREPARED: tuple[None, None] = (None, None)
MOST_PREPARED = 64
"""Kinds of call that a site remembers: lengths of prompts, for the most part."""


def _at_positions(policy: Policy, positions: Tensor | None, query: Tensor, key: Tensor) -> Policy:
    """Return the policy for these positions, or raise where nobody can tell them from a longer cache."""
    if positions is not None and positions.ndim == 2 and policy.needs == {"position"}:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        rows = positions[:, None].to(wide).expand(-1, query.shape[1], -1)
        return Constant(policy(RowStats(position=rows, maximum=torch.zeros_like(rows))))
    if positions is None and query.shape[2] == key.shape[2]:  # of themselves alone: index and position are the same
        return policy
    raise NotImplementedError(
        f"{type(policy).__name__} reads positions, which this model's attention does not tell where a mask hides keys; "
        "generate without padding and with a dynamic cache, or take a policy that reads the count of keys"
    )


Kind = tuple[Documents | None, Batch | None, tuple[Tensor, Tensor] | None]


def _attention(query: Tensor, key: Tensor, value: Tensor, kind: Kind, **options: Any) -> Any:
    documents, batch, ends = kind
    if batch is None and ends is None and documents is None:
        return sharpmax.torch.attention(query, key, value, **options)
    if documents is not None:
        output, stats = attend_packed(_packed(query, key, value, documents, options))
        return (output, stats) if options.get("return_stats") else output
    if batch is not None:
        result = _attend_paged(query, batch, **options)
        output, stats = result if options.get("return_stats") else (result, RowStats())
        output = output.transpose(0, 1)
    else:
        result = attention_varlen(query[0], key[0], value[0], *ends, **options)  # type: ignore[misc]
        output, stats = result if options.get("return_stats") else (result, RowStats())
    output, rows = output[None], stats.mapped(lambda field: field[None])
    return (output, rows) if options.get("return_stats") else output


def _attend_paged(query: Tensor, batch: Batch, **options: Any) -> Any:
    if options.get("mask") is not None or options.get("bias") is not None:
        raise NotImplementedError("a mask or a bias per key is not read from a paged cache; call model.generate")
    named = ("policy", "scale", "window", "softcap", "sinks", "return_stats", "implementation")
    asked = {name: options[name] for name in named if name in options}
    return paged_attention(
        query[0].transpose(0, 1), batch.pages, batch.ends, longest_query=batch.longest_query, **asked
    )


def _packed(query: Tensor, key: Tensor, value: Tensor, documents: Documents, options: dict[str, Any]) -> Request:
    request = packed_request(query, key, value, documents, **options)
    if request is None:
        raise NotImplementedError("no fused kernel serves these packed documents; give them in batches")
    return request


def _is_captured(query: Tensor) -> bool:
    """Tell whether the call goes into a CUDA graph, where no number can be read."""
    return query.is_cuda and torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def _entropy(site: Site, query: Tensor, key: Tensor, kind: Kind, options: dict[str, Any]) -> Tensor:
    """Return the entropy of each row, beside the graph, which is the same without."""
    documents, batch, ends = kind
    entropy: Tensor
    if batch is not None or ends is not None:
        asked = {**options, "policy": Constant(1.0), "implementation": site.run.implementation, "dropout": 0.0}
        entropy = _attention(query, key, key, kind, return_stats=True, **asked)[1].entropy
    elif documents is None:
        of_logits = {name: option for name, option in options.items() if name != "dropout"}
        entropy = sharpmax.torch.row_stats(query, key, **of_logits).entropy
    else:
        asked = {**options, "implementation": site.run.implementation}
        entropy = packed_statistics(_packed(query, key, key, documents, asked)).entropy
    return entropy
