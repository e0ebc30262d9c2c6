"""Load a model to fine-tune: a Gemma of random weights by its size, or a causal one by name."""

from pathlib import Path

from sharpmax.builtin import BUILTIN
from sharpmax.hf.models.gemma import SIZES, gemma
from sharpmax.hf.models.load import LoadedModel, load
from sharpmax.torch.device import must_run_on


def load_by_name(name: str, *, seed: int, device: str, accept_license: bool = False) -> LoadedModel:
    """Load a model to train: a Gemma of random weights by its size, or a causal one that `sharpmax.hf.load` knows."""
    if name in SIZES:
        return gemma(name, seed=seed, device=device)
    must_run_on(device)
    try:
        loaded = load(name, device=device, accept_license=accept_license)
    except ValueError as error:
        if name in BUILTIN or Path(name).is_dir():
            raise
        raise ValueError(f"{error}; of random weights there are {', '.join(SIZES)}") from error
    if not loaded.generates:
        raise ValueError(f"{name} is not a causal language model: it cannot be asked to continue a text")
    return loaded
