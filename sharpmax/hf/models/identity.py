"""Tell one model from another of the same name: a folder that was trained on since is another model.

A run folder that keeps its steps would otherwise read back what an earlier model answered. Here a model in memory;
of a folder that is not loaded yet, `sharpmax.runs.provenance.weights_of_folder` does the same by its files.
"""

import hashlib
import io
import json

from sharpmax.extras import extra
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import stage

with extra("hf"):
    import torch

DIGITS = 16  # of the fingerprint
NOT_OF_IT = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
"""Fields of a config that change no answer, or that the weights tell."""
SAMPLE = "The code of the amber lamp is 4821.\n\tdef f(x): return x**2  # naïve 中文 🙂"


def fingerprint(loaded: LoadedModel) -> str:
    """Return a fingerprint of a model: its weights as they are in memory, its config, and how it reads a text.

    The same on every device. It reads all weights: about a second per 500 MB.
    """
    found = hashlib.sha256()
    with stage("reading the weights"):
        for name, tensor in sorted(loaded.model.state_dict().items()):
            if not isinstance(tensor, torch.Tensor) or tensor.is_quantized:  # of a quantised module
                torch.save((name, tensor), packed := io.BytesIO())
                found.update(packed.getvalue())
                continue
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            if not tensor.is_meta:  # offloaded: by its name and shape only
                found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    config = {name: value for name, value in loaded.model.config.to_diff_dict().items() if name not in NOT_OF_IT}
    vocabulary: dict[str, int] = getattr(loaded.tokenizer, "get_vocab", dict)()  # one that a caller wrote may have none
    read = [sorted(vocabulary.items()), loaded.tokenizer(SAMPLE, verbose=False).input_ids]
    found.update(json.dumps([config, read], sort_keys=True, default=str).encode())
    return found.hexdigest()[:DIGITS]
