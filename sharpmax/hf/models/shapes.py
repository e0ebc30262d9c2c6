"""Models by their shape alone: real transformers architectures with random weights, to measure speed on.

Speed depends on shapes and on how far rows are dispersed, not on what a model has learned. Query and key projections
are drawn so that logits have a standard deviation of `LOGITS`, as those of trained heads do: with transformers' own
initialisation every row would be uniform, and a rule that leaves uniform rows alone would look free.
"""

from dataclasses import dataclass
from typing import Any

from sharpmax.extras import extra
from sharpmax.torch.device import must_run_on

with extra("hf"):
    import torch
    import transformers

LOGITS = 3.0
"""Standard deviation of the logits; n of them then have an entropy of about log n - 4.5 nats."""


@dataclass(frozen=True)
class Shape:
    """One shape: the model it is taken from, and the config's fields."""

    about: str
    architecture: str
    config: dict[str, Any]


SHAPES = {
    "smollm2": Shape(
        "SmolLM2-135M: 30 layers, 9 heads of width 64 on 3 key heads",
        "Llama",
        {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "vocab_size": 49152,
        },
    ),
    "llama-1b": Shape(
        "Llama 3.2 1B: 16 layers, 32 heads of width 64 on 8 key heads",
        "Llama",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
        },
    ),
    "gemma-2b": Shape(
        "Gemma 2B, the paper's model: 18 layers, 8 heads of width 256 on 1 key head",
        "Gemma",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 16384,
            "vocab_size": 256000,
        },
    ),
    "tiny": Shape(
        "2 layers, 4 heads of width 16 on 2 key heads: to try the benchmark on a CPU",
        "Llama",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 128,
            "vocab_size": 256,
        },
    ),
}


def random_model(name: str, *, context: int, dtype: Any, device: str, seed: int = 0) -> Any:
    """Return a causal model of one of the `SHAPES`, in evaluation mode, with random weights from the seed.

    Raises:
        ValueError: a name that is not among the shapes, or a device that is not there.
    """
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}; there are: {', '.join(SHAPES)}")
    must_run_on(device)
    shape = SHAPES[name]
    config = getattr(transformers, f"{shape.architecture}Config")(max_position_embeddings=context, **shape.config)
    for end in ("eos_token_id", "pad_token_id"):
        setattr(config, end, 0)
    with torch.device(device), torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{shape.architecture}ForCausalLM")(config).to(dtype)
        spread = (LOGITS / config.hidden_size) ** 0.5
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                torch.nn.init.normal_(projection.weight, std=spread)
    return model.eval()
