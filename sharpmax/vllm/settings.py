"""What a server is asked to sharpen with: which card, whether it fits the model, and what is refused. No vLLM in here.

    vllm serve MODEL --additional-config '{"sharpmax": {"card": "card.json"}}'

`sharpmax.json` in the model's folder is found without being named; `"card": null` leaves it out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharpmax.builtin import BUILTIN
from sharpmax.builtin.fetch import model_folder
from sharpmax.core.cards import CARD_FILE, load_card, own_name
from sharpmax.core.extension import Extension, Unscaled, Yarn
from sharpmax.core.policies import PerLayer, Policy
from sharpmax.torch.per_head import check_columns, heads_of

TRIED = ("0.32",)
"""The versions of vLLM that this plug-in was run with; its interface for attention moves."""

KEYS = frozenset({"card", "any_model", "any_version"})
CACHES = frozenset({"auto", "float16", "bfloat16", "float32"})
"""Kinds of key-value cache that our attention reads."""


@dataclass(frozen=True)
class Served:
    """What the plug-in asks of a server's config, as plain values."""

    model: str
    names: tuple[str, ...]  # what it is served as
    layers: int
    heads: int
    version: str
    cache: str = "auto"
    dtype: str = "auto"  # the model's; auto: not said
    generates: bool = True
    has_mla: bool = False
    is_encoder_decoder: bool = False
    all_layers_attend: bool = True
    speculates: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)  # the model's rope_parameters, as the server applies them
    splits_context: bool = False


def card_path(additional: Any, model: str) -> Path | None:
    """Return the card that a server is to use, absolute; None where it is to use none.

    Raises:
        ValueError: settings that cannot be meant.
    """
    settings = _settings(additional)
    if "card" in settings:
        named = settings["card"]
        if named is None:
            return None
        if not isinstance(named, str) or not named:
            raise ValueError(f'sharpmax: "card" must be the path of a card, or null for none, got {named!r}')
        path = Path(named)
        return (path / CARD_FILE if path.is_dir() else path).absolute()
    beside = Path(model) / CARD_FILE
    if beside.exists():
        return beside.absolute()
    if settings:
        raise ValueError(f'sharpmax: {sorted(settings)} say how to use a card, and none is named: add "card"')
    return None


def policy_for(path: Path, additional: Any, served: Served) -> Policy:
    """Return the policy of the card, or raise ValueError in one line where it cannot be served as asked."""
    settings = _settings(additional)
    try:
        card = load_card(path)
    except OSError as error:
        raise ValueError(f"sharpmax: cannot read the card {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"sharpmax: {error}") from None
    version = ".".join(served.version.split(".")[:2])
    if version not in TRIED and not settings.get("any_version"):
        raise ValueError(
            f"sharpmax: this plug-in was tried with vLLM {', '.join(TRIED)}, and this is {served.version}; install one "
            'of those, or add "any_version": true and compare with `sharpmax serve-check`'
        )
    refused = [why for why, holds in _refusals(served).items() if holds]
    if refused:
        raise ValueError(f"sharpmax: a card cannot be served with {', '.join(refused)}; drop the card or the option")
    beside = path.parent == Path(served.model).absolute()
    if card.model is not None and not beside and not settings.get("any_model"):
        known = {own_name(name) for name in (served.model, *served.names)} | _builtin_names(served.model)
        if own_name(card.model) not in known:
            raise ValueError(
                f"sharpmax: the card {path} was fitted on {card.model}, and {served.model} is served; fit one on this "
                'model, or add "any_model": true if it is the same model under another name'
            )
    _must_fit(path, card.policy, served)
    _must_extend(path, card.extension, served)
    return card.policy


ROUNDING = 1e-6  # of a factor or a temperature


def _must_extend(path: Path, extension: Extension | None, served: Served) -> None:
    """Raise ValueError unless the server scales positions as the card's extension says: it does so itself, or not."""
    kind = str(served.rope.get("rope_type", "default"))
    if extension is None or isinstance(extension, Unscaled):
        return
    if not isinstance(extension, Yarn):
        raise ValueError(
            f"sharpmax: the card {path} extends the context by {type(extension).__name__}, which turns keys where they "
            "are read, and vLLM caches them turned; serve a card that extends by Yarn, or use transformers' generate"
        )
    wanted: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": float(extension.factor),
        "original_max_position_embeddings": extension.trained,
    }
    wanted |= {} if extension.temperature else {"attention_factor": 1.0}
    told = {name: served.rope.get(name) for name in wanted}
    given = served.rope.get("attention_factor")  # 0 is one too, with which vLLM would have no logits
    temperature = 0.1 * math.log(extension.factor) + 1.0 if given is None else given
    expected = 0.1 * math.log(extension.factor) + 1.0 if extension.temperature else 1.0
    others = set(served.rope) & {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
    same = all(_alike(told[name], wanted[name]) for name in wanted if name != "attention_factor")
    if same and _alike(temperature, expected) and not others:
        return
    base = {"rope_theta": served.rope["rope_theta"]} if "rope_theta" in served.rope else {}
    overrides = json.dumps({"rope_parameters": {**base, **wanted}, "max_position_embeddings": extension.context})
    raise ValueError(
        f"sharpmax: the card {path} reads {extension.context} tokens by YaRN, and this server has rope_type {kind}; "
        f"type --hf-overrides '{overrides}' --max-model-len {extension.context}, or serve a card without an extension"
    )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=ROUNDING)
    return bool(one == other)


def _settings(additional: Any) -> Mapping[str, Any]:
    settings = additional.get("sharpmax", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(settings, Mapping) or not settings.keys() <= KEYS:
        raise ValueError(
            f'sharpmax: expected {{"sharpmax": {{"card": "card.json"}}}} with no other keys than '
            f"{', '.join(sorted(KEYS))}, got {settings!r}"
        )
    for name in sorted((KEYS - {"card"}) & settings.keys()):
        if not isinstance(settings[name], bool):  # "false" would say yes
            raise ValueError(f'sharpmax: "{name}" must be true or false, got {settings[name]!r}')
    return settings


def _refusals(served: Served) -> dict[str, bool]:
    return {
        "multi-head latent attention (MLA)": served.has_mla,
        "an encoder (pooling, embeddings, or encoder and decoder)": not served.generates or served.is_encoder_decoder,
        f"a quantised key-value cache (--kv-cache-dtype {served.cache})": served.cache not in CACHES,
        f"a key-value cache of another dtype than the model's {served.dtype} (--kv-cache-dtype {served.cache})": (
            served.cache in CACHES and "auto" not in (served.cache, served.dtype) and served.cache != served.dtype
        ),
        "speculative decoding": served.speculates,
        "a context that is split over processes": served.splits_context,
    }


def _builtin_names(model: str) -> set[tuple[str, ...]]:
    return {
        own_name(name)
        for name, builtin in BUILTIN.items()
        if Path(model).absolute() == model_folder(builtin).absolute()
    }


def _must_fit(path: Path, policy: Policy, served: Served) -> None:
    try:
        check_columns(policy)
    except ValueError as error:
        raise ValueError(f"sharpmax: the card {path} cannot be served: {error}") from None
    if isinstance(policy, PerLayer):
        if not served.all_layers_attend:
            raise ValueError(
                f"sharpmax: the card {path} holds a policy per layer, and some layers of {served.model} do not attend: "
                "which layer is whose cannot be told; serve a card of one policy for all"
            )
        if len(policy.policies) != served.layers:
            raise ValueError(
                f"sharpmax: the card {path} holds {len(policy.policies)} layers, and {served.model} has {served.layers}"
            )
    for layer in range(served.layers):
        heads = heads_of(policy.for_layer(layer))
        if heads not in (None, served.heads):
            raise ValueError(
                f"sharpmax: the card {path} holds {heads} heads in layer {layer}, and {served.model} has {served.heads}"
            )
