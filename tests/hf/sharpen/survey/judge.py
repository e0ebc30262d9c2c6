"""Judge one model class: is it served exactly, refused by name, or not to be built here?

`served` means all of this, on a small random model in float32 on the CPU:

- under `Constant(1.0)` every output equals the plain model's, with and without padding;
- a later token that moves no earlier output of the plain model moves none under `Constant(2.0)`;
- every attention layer that ran changes the output under `Constant(2.0)`, or is named;
- no attention ran outside of ours, or it is named.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sharpmax import Constant, PerLayer
from sharpmax.hf import attention_layers, sharpen
from sharpmax.hf.models.quiet import quiet
from sharpmax.hf.sharpen import interface, modules
from sharpmax.hf.sharpen.layers import layer_count
from tests.hf.sharpen.survey.by_hand import NOT_TRIED
from tests.hf.sharpen.survey.given import inputs_for
from tests.hf.sharpen.survey.small import small_config

SERVED, REFUSED, UNBUILDABLE, WRONG = "served", "refused", "not built here", "WRONG"
LARGEST = 65_000_000
"""Parameters of the largest model that is built: beyond it a config was not cut."""
ROUNDING = 1e-4, 1e-9
"""Largest difference relative to the largest value, in float32, and in float64 if that is exceeded: only rounding
shrinks with the precision."""


@dataclass(frozen=True)
class Verdict:
    """What became of a model type: the class that was tried, the verdict, and why or with what remarks."""

    model_type: str
    model: str
    status: str
    why: str


class Unbuildable(Exception):  # noqa: N818
    """The model cannot be built or run here as it is."""


def judge(model_type: str, candidates: list[str]) -> Verdict:
    """Judge the first of the classes that can be built and run."""
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        return _judge(model_type, candidates)


def _judge(model_type: str, candidates: list[str]) -> Verdict:
    if model_type in NOT_TRIED:
        return Verdict(model_type, (candidates or ["none"])[0], UNBUILDABLE, NOT_TRIED[model_type])
    reasons: list[str] = []
    kinds = [getattr(transformers, name, None) for name in candidates] if candidates else classes_of(model_type)
    for kind in [kind for kind in kinds if kind is not None][:3]:
        name = kind.__name__
        for shallow in (False, True):
            try:
                model = build(kind, small_config(model_type, shallow=shallow))
                status, why = refusal(model)
                if status == REFUSED:
                    return Verdict(model_type, name, status, why)
                given, plain = first_that_runs(model)
            except Exception as error:
                reasons.append(f"{name}: {_line(error)}")
                continue
            return Verdict(model_type, name, *verdict_on(model, given, plain))
    tried, _, why = (reasons or ["none: it has a config and no model class"])[0].partition(": ")
    return Verdict(model_type, tried, UNBUILDABLE, why)


def classes_of(model_type: str) -> list[Any]:
    """Return the model classes of a type that no auto class knows: most are a part of another type's model."""
    config = transformers.CONFIG_MAPPING[model_type]
    try:
        modeling = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return []
    kinds = [kind for kind in vars(modeling).values() if getattr(kind, "config_class", None) is config]
    return [kind for kind in kinds if not kind.__name__.endswith("PreTrainedModel")]


def first_that_runs(model: Any) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the first inputs that the model takes, and its output."""
    errors = []
    for given in inputs_for(model):
        try:
            return given, run(model, given)
        except Exception as error:
            errors.append(error)
    raise Unbuildable(f"does not run: {_line(errors[0])}") from errors[0]


def build(kind: Any, config: Any) -> Any:
    """Return a small model with weights of seed 0 that attend unevenly."""
    if kind.__name__.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 3  # which no text here holds
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config).parameters())
    if count > LARGEST:
        raise Unbuildable(f"{count / 1e6:.0f} M parameters")
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.abs().max() if parameter.numel() else torch.ones(())
            if not 1e-6 < size < 1e4:  # initialised as 0, where attention would change nothing; or not at all
                parameter.normal_(std=0.02)
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model


def run(model: nn.Module, given: dict[str, Any]) -> list[Tensor]:
    """Return every floating tensor of the output, caches left out."""
    torch.manual_seed(0)  # some draw in evaluation too
    with torch.no_grad():
        result = model(**given)
    if hasattr(result, "items"):
        result = {
            name: value for name, value in result.items() if "past_key_values" not in name and "cache" not in name
        }
    found = [x for x in tree_flatten(result)[0] if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    if not found:
        raise Unbuildable("its output holds no floating tensor")
    if not all(torch.isfinite(x).all() for x in found[:1]):
        raise Unbuildable("its output is not finite")
    return found


def difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of two outputs, relative to the largest value of each tensor."""
    if [x.shape for x in actual] != [x.shape for x in expected]:
        return float("inf")
    worst = 0.0
    for x, y in zip(actual, expected, strict=True):
        same = (x == y) | (x.isnan() & y.isnan())
        gap = (x - y).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf"))
        size = y[torch.isfinite(y)].abs().max() if torch.isfinite(y).any() else torch.ones(())
        worst = max(worst, float(gap.max() / size.clamp(min=1e-6)))
    return worst


def refusal(model: Any) -> tuple[str, str]:
    """Return the status `refused` and why, if sharpening the model is refused."""
    try:
        sharpen(model, Constant(1.0)).restore()
    except NotImplementedError as error:
        return REFUSED, _line(error).partition(", so ")[0].partition("; ")[0]
    return SERVED, ""


def verdict_on(model: Any, given: dict[str, Any], plain: list[Tensor]) -> tuple[str, str]:
    """Return the verdict on a model that runs, and its reason or remarks."""
    layers = layer_count(attention_layers(model))
    ran: set[int] = set()
    biases: list[float] = []

    def probe(layer: int, query: Tensor, key: Tensor, options: dict[str, Any]) -> None:
        ran.add(layer)
        if (bias := options.get("bias")) is not None and bias.numel():
            biases.append(float(bias.min()))

    cases = [given, *padded(model, given)]
    outside: dict[str, None] = {}
    for which, case in enumerate(cases):
        try:
            expected = plain if case is given else run(model, case)
        except Exception:
            continue  # it takes no padding like ours
        try:
            with sharpen(model, Constant(1.0), probe=probe), watched(model, outside):
                actual = run(model, case)
        except RuntimeError as error:
            if "without asking for attention" in str(error):
                return WRONG, _line(error)
            return WRONG, f"raises when it runs: {_line(error)}"
        except Exception as error:
            return WRONG, f"raises when it runs: {type(error).__name__}: {_line(error)}"
        if (gap := difference(actual, expected)) > ROUNDING[0] and (exact := in_double(model, case)) > ROUNDING[1]:
            return WRONG, f"{'padded ' if which else ''}output differs by {gap:.2g} (float64: {exact:.2g})"
    remarks = []
    if broken := looks_ahead(model, given):
        return WRONG, broken
    if outside:
        remarks.append("stays plain: " + ", ".join(outside))
    if biases and min(biases) <= -50:
        remarks.append(f"a bias of {min(biases):.3g} counts as visible")
    without = [layer for layer in sorted(ran)[:24] if not has_effect(model, given, plain, layer, layers)]
    if without:
        remarks.append(f"no effect on the output: layers {', '.join(map(str, without))} of {layers}")
    if missing := sorted(set(range(layers)) - ran):
        remarks.append(f"{len(missing)} of {layers} layers did not run on these inputs")
    return SERVED, "; ".join(remarks)


def in_double(model: Any, given: dict[str, Any]) -> float:
    """Return the difference in float64; infinite where the model does not run in it."""
    wide = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
    try:
        model.double()
        plain = run(model, wide)
        with sharpen(model, Constant(1.0)):
            return difference(run(model, wide), plain)
    except Exception:
        return float("inf")
    finally:
        model.float()


def padded(model: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs with the first text padded at its end, where the model takes a mask for it."""
    if "input_ids" not in given or "attention_mask" not in inspect.signature(model.forward).parameters:
        return []
    mask = torch.ones_like(given["input_ids"])
    mask[0, ..., -4:] = 0
    return [{**given, "attention_mask": mask}]


def has_effect(model: Any, given: dict[str, Any], plain: list[Tensor], layer: int, layers: int) -> bool:
    """Tell whether sharpening the one layer changes the output beyond rounding."""
    policy = PerLayer(tuple(Constant(2.0 if index == layer else 1.0) for index in range(layers)))
    with sharpen(model, policy):
        return difference(run(model, given), plain) > 1e-6


def looks_ahead(model: Any, given: dict[str, Any]) -> str | None:
    """Say if a last token moves earlier outputs of the sharpened model, and none of the plain one's; None if not."""
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    if name not in given:
        return None
    changed = given[name].clone()
    changed[..., -1] = torch.where(changed[..., -1] == 7, 8, 7)
    later, length = {**given, name: changed}, changed.shape[-1]

    def moved() -> bool | None:
        before, after = run(model, given)[0], run(model, later)[0]
        if before.ndim < 3 or before.shape[1] != length:
            return None
        return difference([after[:, :-1]], [before[:, :-1]]) > 1e-5

    plain = moved()
    with sharpen(model, Constant(2.0)):
        sharp = moved()
    if plain is False and sharp:
        return "it sees the future: its last token moves earlier outputs"
    if plain and sharp is False:
        return "it turns causal: its last token no longer moves earlier outputs"
    return None


@contextmanager
def watched(model: nn.Module, outside: dict[str, None]) -> Iterator[None]:
    """Note in `outside` the classes of modules that attend inside this block, and not through `attend_at`."""
    running: list[str] = []
    ours: list[None] = []

    class Softmaxes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.overloadpacket.__name__
            if not ours and ("softmax" in name or "scaled_dot_product" in name) and args[0].ndim >= 3:
                outside.setdefault(running[-1] if running else "?")
            return function(*args, **(kwargs or {}))

    def wrapped(attend: Callable[..., Any]) -> Callable[..., Any]:
        def attend_at(*args: Any, **kwargs: Any) -> Any:
            ours.append(None)
            try:
                return attend(*args, **kwargs)
            finally:
                ours.pop()

        return attend_at

    def enter(module: nn.Module, *_: Any) -> None:
        running.append(type(module).__name__)

    def leave(*_: Any) -> None:
        running.pop()

    attend = interface.attend_at
    hooks = [h for m in model.modules() for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    interface.attend_at = modules.attend_at = wrapped(attend)
    try:
        with Softmaxes():
            yield
    finally:
        interface.attend_at = modules.attend_at = attend
        for hook in hooks:
            hook.remove()


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = lines[1] if len(lines) > 1 and "validation error" in lines[0] else lines[0]
    return told[:200].replace("|", "/")
