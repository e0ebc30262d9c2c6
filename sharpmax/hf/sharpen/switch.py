"""Sharpen a model: one line on, one line off.

    with sharpen(model, policy):
        model.generate(…)

Nothing is patched globally: the model's attention modules carry their policy, its configs name our function in
transformers' attention *and* mask interfaces (without the second a decoder would silently lose its causal mask), and
all of it is put back on leaving, whatever happens. `unsharpen(model)` does so where nobody holds the block any more.

Many threads may call a sharpened model at once. They all get its one policy, so a second thread may not sharpen it too.
Switching off waits for their passes; sharpen a model before other threads call it.
"""

import threading
import warnings
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from sharpmax.core.cards import Card
from sharpmax.core.checks import short
from sharpmax.core.extension import Extension
from sharpmax.core.ladder import check_implementation
from sharpmax.core.policies import Constant, PerLayer, Policy
from sharpmax.core.softmax import SilentPolicyWarning
from sharpmax.extras import extra
from sharpmax.hf.sharpen.continuous import PAGED_NAME, Beginning, batched_attention, end_all, no_mask
from sharpmax.hf.sharpen.extension import Applied, apply_extension, must_turn_late
from sharpmax.hf.sharpen.interface import (
    EAGER_NAME,
    NAME,
    NO_WEIGHTS,
    eager_attention,
    interface_attention,
)
from sharpmax.hf.sharpen.late_rotation import LateRotation
from sharpmax.hf.sharpen.layers import (
    AttentionLayer,
    attends_eagerly_only,
    attention_layers,
    check_module,
    configs_of,
    layer_count,
)
from sharpmax.hf.sharpen.length_temperature import warn_of_second_temperature
from sharpmax.hf.sharpen.modules import multihead_forward
from sharpmax.hf.sharpen.sidecar import card_for, name_of, warn_of_another_model
from sharpmax.hf.sharpen.site import Observer, Probe, Run, Site, runs_of, site_of, sites_of
from sharpmax.torch import IMPLEMENTATIONS
from sharpmax.torch.per_head import check_columns
from sharpmax.torch.policy_kinds import constant_beta
from sharpmax.torch.torch_internals import is_compiled
from sharpmax.torch.watching.measure import Gauge

with extra("hf"):
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import eager_mask, sdpa_mask


def sharpen(
    model: nn.Module,
    policy: Policy | Card | str | PathLike[str] = Constant(1.0),  # noqa: B008
    *,
    extension: Extension | None = None,
    observer: Observer | None = None,
    probe: Probe | None = None,
    implementation: str | None = None,
) -> "Sharpened":
    """Switch the policy on in every attention layer of a model, until the block ends or `restore()` is called.

    Args:
        model: any transformers model (bare, under PEFT, compiled), or any module with `nn.MultiheadAttention` or our
            `Attention` slots inside.
        policy: a policy, `PerLayer` for one per layer (`attention_layers` gives their order), or a card: itself, its
            path, the folder that holds one, or the name of one that `sharpmax cards` lists. A card that was fitted on
            another model is warned of (`OtherModelWarning`). A module keeps its policy if it is moved to another place.
        extension: how the model reads more than its trained context; a card's own, if it carries one. Inside the block
            of another policy, that block's stays on.
        observer: called with a layer's index and its row statistics at every attention call.
        probe: called with a layer's index, query, key and options before every attention call. The tensors are those
            that attend, so it must not write into them.
        implementation: of `sharpmax.torch.attention`; the fastest that can serve unless given.

    Raises:
        NotImplementedError: the model attends in a way that cannot be reached, or cannot be extended: it has no rotary
            positions, or a scaling of its own.
        RuntimeError: the model is sharpened in another thread.
        ValueError: a `PerLayer` for another number of layers, arrays that are not one value per head, or an extension
            of another context, or of a model that is extended already.
        TypeError: something else for a model, a policy, an observer or a probe.

    >>> with sharpen(model, "smollm2"):  # doctest: +SKIP
    ...     model.generate(ids)
    """
    if isinstance(policy, str | PathLike):
        policy = card_for(name_of(model), policy)
    elif isinstance(policy, Card):
        warn_of_another_model(policy, name_of(model))
    if isinstance(policy, Card):
        if extension is not None and policy.extension is not None:
            raise ValueError(
                f"the card extends the model already ({policy.extension}); leave out extension={extension}"
            )
        extension, policy = extension or policy.extension, policy.policy
    if not isinstance(policy, Policy):
        raise TypeError(f"expected a sharpmax policy or the path of a card, got {policy!r}")
    for name, told in (("observer", observer), ("probe", probe)):
        if told is not None and not callable(told):
            raise TypeError(f"expected {name} to be a function, got {short(told)}")
    check_implementation(IMPLEMENTATIONS, implementation)
    layers = attention_layers(model)
    check_layers(policy, layers)
    warn_of_second_temperature(policy, configs_of(model))
    applied = None if extension is None else _extended(model, extension, layers)
    return Sharpened(model, policy, layers, Run(observer, implementation, probe), applied)


def _extended(model: nn.Module, extension: Extension, layers: list[AttentionLayer]) -> Applied:
    """Return an extension on its way into the model, or raise where it cannot be applied; nothing is changed."""
    if not isinstance(extension, Extension):
        raise TypeError(f"expected a sharpmax extension, got {extension!r}")
    if (on := extension_on(model)) is not None:
        raise ValueError(f"this model is extended already ({on}); leave that block before another extension")
    applied = apply_extension(model, extension, [layer.module for layer in layers])
    if applied.late is not None:

        def turned_late(late: LateRotation) -> Sharpened:
            return Sharpened(model, Constant(1.0), layers, Run(), replace(applied, late=late))

        must_turn_late(applied, turned_late)
    return applied


def unsharpen(model: nn.Module) -> None:
    """Switch off every policy that is on in the model, whatever thread switched it on; harmless where there is none.

    For a notebook that has lost what `sharpen` returned, and for a copy of a sharpened model.

    Raises:
        TypeError: something else for a model.
        RuntimeError: a copy of a part of a sharpened model, which does not know what it was before.

    >>> unsharpen(model)  # doctest: +SKIP
    """
    check_module(model)
    while runs := [id(run) for run in runs_of(model)]:
        hooks = (h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values()))
        owners = (getattr(hook, "__self__", None) for hook in hooks)
        copies = {id(owner._run): owner for owner in owners if isinstance(owner, Sharpened)}
        on = [one for run in runs if (one := _switched_on.get(run) or copies.get(run)) is not None]
        latest = next((one for one in on if one.is_latest), None)
        if latest is None:
            raise RuntimeError("this is a copy of a part of a sharpened model: make it before the model is sharpened")
        latest._put_back()


def policy_on(model: nn.Module) -> Policy | Extension | None:
    """Return a policy or an extension by which a model attends otherwise than plainly; None where there is none."""
    for module in model.modules():
        site = site_of(module)
        if site is not None and not site.all_one:
            return next(policy for policy in site.policies if constant_beta(policy) != 1)
    return extension_on(model)


def extension_on(model: nn.Module) -> Extension | None:
    """Return the extension that is on in a model; None where there is none."""
    return next((site.extension for site in sites_of(model) if site.extension is not None), None)


class Sharpened:
    """A model with its policy switched on; made by `sharpen`. Leaving the block, or `restore()`, switches it off."""

    def __init__(
        self, model: nn.Module, policy: Policy, layers: list[AttentionLayer], run: Run, applied: Applied | None = None
    ) -> None:
        self.model, self.policy, self.layers = model, policy, layers
        self.extension = None if applied is None else applied.extension
        self._applied = applied
        self._run = run
        self._undo: list[tuple[Any, str, Any]] = []
        self._sites: dict[nn.Module, Site] = {}
        self._hooks: list[RemovableHandle] = []
        self._places: list[tuple[dict[str, Any], str, nn.Module]] = []
        self._lengths: list[tuple[nn.ModuleList, int]] = []
        self._managers: list[Any] = []  # of continuous batching, begun since
        _register()
        with _switching:
            self._refuse_other_threads()
            self._refuse_managers()
            try:
                self._switch_on()
            except BaseException:
                self._put_back()
                raise

    @property
    def calls(self) -> int:
        """How often an attention layer has run since it was switched on, compiled graphs left out."""
        return self._run.calls

    def restore(self) -> None:
        """Switch it off: everything is as it was before. Harmless the second time."""
        self._switch_off()

    def _switch_off(self) -> None:
        if not self.is_on:
            return
        if not self.is_latest:
            raise RuntimeError("this model was sharpened again since; restore the later one first")
        self._put_back()
        self._say_if_silent()
        self._say_if_owed()

    def __enter__(self) -> Self:
        if not self.is_on:
            raise RuntimeError(
                "this block was left before, and its policy is off; call sharpen(model, policy) for another block"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._switch_off()
        else:
            self._put_back_later_ones()
            self._put_back()

    @property
    def is_on(self) -> bool:
        """Tell whether it is on still: `unsharpen` may have switched it off."""
        return bool(self._undo)

    @property
    def is_latest(self) -> bool:
        """Tell whether nothing was switched on since that is on still."""
        return all(site_of(module) is site for module, site in self._sites.items())

    def _put_back_later_ones(self) -> None:
        """Switch off what was switched on inside this block and outlives it: it would put back this block's policy."""
        for module, site in self._sites.items() if self.is_on else ():
            while (current := site_of(module)) is not None and current is not site:
                later = _switched_on.get(id(current.run))
                if later is None:
                    break
                later._put_back()

    def _refuse_other_threads(self) -> None:
        for module in (layer.module for layer in self.layers):
            on = _switched_on.get(id(site.run)) if (site := site_of(module)) is not None else None
            thread = None if on is None else _thread_of.get(on)
            if thread is not None and thread is not threading.current_thread() and thread.is_alive():
                raise RuntimeError(
                    f"this {type(self.model).__name__} is sharpened in another thread ({thread.name}), whose calls "
                    "would get this policy; restore it there first, or sharpen a copy: copy.deepcopy(model)"
                )
        _thread_of[self] = threading.current_thread()

    def _refuse_managers(self) -> None:
        """Raise RuntimeError while a manager is on: the CUDA graphs that it has go on with the policy of before."""
        runs = {id(site.run) for layer in self.layers if (site := site_of(layer.module)) is not None}
        on = [one for run in runs if (one := _switched_on.get(run)) is not None]
        if any(manager.is_running() for one in on for manager in one._managers):
            raise RuntimeError(
                "a continuous batching manager is on in this model, with the policy of before: stop it before another"
            )

    def _gauge_of_now(self) -> Gauge | None:
        """Return the gauge of a watch that is on: its layers keep telling it, whatever policy they get."""
        sites = [
            (layer, site) for layer in self.layers if (site := site_of(layer.module)) and site.run.gauge is not None
        ]
        if any(site.first_layer != layer.index for layer, site in sites):
            raise RuntimeError(
                f"this {type(self.model).__name__} is part of a model that is watched, which counts its layers "
                "otherwise; sharpen the whole model, or close the watch first"
            )
        return next((site.run.gauge for _, site in sites), None)

    def _switch_on(self) -> None:
        self._run.gauge = self._gauge_of_now()
        _switched_on[id(self._run)] = self
        for layer in self.layers:
            policies = tuple(self.policy.for_layer(index) for index in range(layer.index, layer.index + layer.runs))
            outer, applied = site_of(layer.module), self._applied
            on = applied if applied is not None else outer
            extended = {} if on is None else {"extension": on.extension, "late": on.late}
            place = _place(layer.module)
            site = self._sites[layer.module] = Site(self._run, layer.index, policies, place, **extended)  # type: ignore[arg-type]
            self._set(layer.module, "sharpmax_site", site)
            if isinstance(layer.module, nn.MultiheadAttention):
                self._set(layer.module, "forward", multihead_forward.__get__(layer.module))
                # In evaluation nn.TransformerEncoderLayer passes its attention by, unless something is hooked to it.
                self._hooks.append(layer.module.register_forward_pre_hook(lambda *_: None))
        if self._applied is not None and self._applied.forward is not None:
            assert self._applied.rotary is not None
            self._set(self._applied.rotary.module, "forward", self._applied.forward)
        for module in self.model.modules():
            if isinstance(module, nn.TransformerEncoder):
                self._set(module, "use_nested_tensor", False)  # only that fast path reads nested tensors
        eagerly = attends_eagerly_only(self.model)
        for config in configs_of(self.model):
            self._set(config, "_attn_implementation_internal", EAGER_NAME if id(config) in eagerly else NAME)
        shared = any(layer.runs > 1 for layer in self.layers)
        by_host = self._needs_the_host()
        for part in [part for part in self.model.modules() if isinstance(part, PreTrainedModel)]:
            self._set(part, "init_continuous_batching", Beginning(part, NAME, self._managers, by_host))
            self._hooks.append(part.register_forward_pre_hook(_refuse_weights, with_kwargs=True))
            if self._applied is not None and self._applied.late is not None:
                self._hooks.append(part.register_forward_pre_hook(_refuse_static_cache, with_kwargs=True))
            if shared:  # a part may be called by itself
                self._hooks.append(part.register_forward_pre_hook(self._begin_part))
                self._hooks.append(part.register_forward_hook(self._end_part, always_call=True))
        self._watch_places()
        for part in self._callable_parts():
            self._hooks.append(part.register_forward_pre_hook(self._begin_forward))
            self._hooks.append(part.register_forward_hook(self._end_forward))
            self._hooks.append(part.register_forward_hook(self._leave_forward, always_call=True))

    def _callable_parts(self) -> list[nn.Module]:
        """Return the model, and each model inside it that attends: `model.model(ids)` is a pass too."""
        parts = (part for part in self.model.modules() if isinstance(part, PreTrainedModel))
        attending = (part for part in parts if not self._sites.keys().isdisjoint(part.modules()))
        return list(dict.fromkeys((self.model, *attending)))

    def _needs_the_host(self) -> bool:
        """Tell whether attention to a paged cache tells somebody of each call, or is not by our kernels alone."""
        run = self._run
        if run.observer is not None or run.probe is not None or run.implementation not in (None, "triton"):
            return True
        return any(policy.iterative for site in self._sites.values() for policy in site.policies)

    def _watch_places(self) -> None:
        """Note where each attention module hangs, and how long each list of modules is."""
        attends = {id(layer.module) for layer in self.layers}
        self._places, self._lengths = [], []
        for parent in self.model.modules():
            holding = {n: c for n, c in parent._modules.items() if c and any(id(m) in attends for m in c.modules())}
            self._places += [(parent._modules, name, child) for name, child in holding.items()]
            if holding and isinstance(parent, nn.ModuleList):
                self._lengths.append((parent, len(parent)))

    def _must_be_as_it_was(self) -> None:
        """Raise RuntimeError if a layer was replaced or added: it would attend without the policy, in silence."""
        in_place = all(modules.get(name) is child for modules, name, child in self._places)
        if in_place and all(len(modules) == length for modules, length in self._lengths):
            return
        layers = attention_layers(self.model)
        changed = {layer.module for layer in layers} ^ set(self._sites)
        if changed:
            name = next((layer.name for layer in (*layers, *self.layers) if layer.module in changed), "a layer")
            raise RuntimeError(
                f"{name} of this {type(self.model).__name__} was replaced, added or removed since it was sharpened; "
                "leave the block, change the model, and sharpen it again"
            )
        self._watch_places()  # wrapped, as FSDP does: the same modules attend

    def _begin_part(self, *_: Any) -> None:
        self._run.now.in_forward = True
        self._run.now.ran.clear()

    def _end_part(self, *_: Any) -> None:
        self._run.now.in_forward = False

    def _begin_forward(self, part: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        now = self._run.now
        now.depth = 1 if part is self.model else now.depth + 1  # Ctrl-C in a pass before left it as it was
        if now.depth == 1:
            now.with_graph, now.asked = torch.is_grad_enabled(), False
            self._must_be_as_it_was()
            self._run.under_way.begin()

    def _leave_forward(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        now = self._run.now
        now.depth = max(0, now.depth - 1)
        if not now.depth:
            now.with_graph = False
            self._run.under_way.end()

    def _end_forward(self, part: nn.Module, *_: Any) -> None:
        now = self._run.now
        if torch.compiler.is_compiling() or now.depth > 1 or now.asked or is_compiled(self.model):
            return
        # A policy nested inside this one takes its calls.
        if any(site_of(module) is self._sites.get(module, _Absent) for module in part.modules()):
            name = type(self.model).__name__
            if any(config._attn_implementation not in (NAME, EAGER_NAME) for config in configs_of(self.model)):
                raise RuntimeError(
                    f"the attention implementation of this {name} was changed while it is sharpened or watched "
                    "(set_attn_implementation): leave the block, change it, and sharpen or watch it again"
                )
            raise RuntimeError(
                f"{name} ran without asking for attention once: sharpening or watching it does nothing. A model whose "
                "attention was chosen when it was built has to be loaded anew"
            )

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, owner.__dict__.get(name, _Absent)))
        owner.__dict__[name] = value

    def _put_back(self) -> None:
        end_all(self._managers)
        try:
            self._run.under_way.leave()
        finally:  # Ctrl-C while it waits
            with _switching:
                while self._hooks:
                    self._hooks.pop().remove()
                while self._undo:
                    owner, name, before = self._undo.pop()
                    if before is _Absent:
                        owner.__dict__.pop(name, None)
                    else:
                        owner.__dict__[name] = before
            self._run.under_way.left()

    def _say_if_silent(self) -> None:
        points = [p.silent_above for site in self._sites.values() for p in site.policies if p.silent_above is not None]
        if points and self._run.highest_entropy > min(points):
            warnings.warn(
                f"the policy does nothing above an entropy of {min(points):.3f} nats, and some rows reached "
                f"{self._run.highest_entropy:.2f}: they stayed plain softmax",
                SilentPolicyWarning,
                stacklevel=4,  # the caller that left the block or called `restore`
            )

    def _say_if_owed(self) -> None:
        if self._run.owed:
            warnings.warn(
                f"{self._run.owed} attention calls ran without a graph in a pass to differentiate, as under reentrant "
                "gradient checkpointing: a backward() from now on runs them again without the policy, and its "
                "gradients are wrong; call backward() before, or checkpoint with use_reentrant=False",
                RuntimeWarning,
                stacklevel=4,  # the caller that left the block or called `restore`
            )


class _Absent:
    """What stood where nothing stood: a class, because a copy of it is itself."""


_switched_on: WeakValueDictionary[int, Sharpened] = WeakValueDictionary()
"""Every sharpening that is on, by the id of its run: a site knows its run, and copies of a model copy its sites."""


_thread_of: WeakKeyDictionary[Sharpened, threading.Thread] = WeakKeyDictionary()
"""Which thread switched a sharpening on; kept here because a copy of a model cannot copy a thread."""

_switching = threading.RLock()
"""Held while a model is switched on or off: two threads never do so at once."""


def _place(module: nn.Module) -> torch.device:
    """Return where a module computes, as far as its weights say: those of an offloaded one lie on no device."""
    place = next(module.parameters(), torch.empty(0)).device
    return torch.device("cpu") if place.type == "meta" else place


def _refuse_weights(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
        raise NotImplementedError(NO_WEIGHTS)


def _refuse_static_cache(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if getattr(kwargs.get("past_key_values"), "is_compileable", False):
        raise NotImplementedError(
            "a static cache does not say where its keys end, and this extension turns them where they are read: "
            "generate with the dynamic cache, or extend the model by Yarn"
        )


def _register() -> None:
    """Enter our functions into both of transformers' tables: names that nobody uses until a config says so."""
    for name, attend, mask in (
        (NAME, interface_attention, sdpa_mask),
        (PAGED_NAME, batched_attention, no_mask),
        (EAGER_NAME, eager_attention, eager_mask),
    ):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)


def check_layers(policy: Policy, layers: list[AttentionLayer]) -> None:
    """Raise ValueError for a `PerLayer` of another number of layers, or for arrays that would run along the queries."""
    count = layer_count(layers)
    if isinstance(policy, PerLayer) and len(policy.policies) != count:
        raise ValueError(f"the policy holds {len(policy.policies)} layers, and this model has {count} attention layers")
    check_columns(policy)
