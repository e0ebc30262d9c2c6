"""Tiny random models of every family that goes through transformers' attention interface, and inputs for each.

Sizes are the smallest that still show what a family does: two layers, grouped heads, a window shorter than the input.
"""

from typing import Any

import torch
import transformers

VOCABULARY, LENGTH, WINDOW = 64, 24, 7
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MIXED = {**GROUPED, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
IMAGE: dict[str, Any] = {"image_size": 16, "patch_size": 4, "num_channels": 3}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", MIXED),
    "gemma3": ("Gemma3ForCausalLM", MIXED),
    "phi3": ("Phi3ForCausalLM", {"num_key_value_heads": 2}),
    "smollm3": ("SmolLM3ForCausalLM", GROUPED),
    "gpt_oss": ("GptOssForCausalLM", {**MIXED, "num_local_experts": 4, "rope_parameters": ROPE}),
    "gpt2": ("GPT2LMHeadModel", {"n_inner": 48, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "roberta": ("RobertaModel", {}),
    "albert": ("AlbertModel", {"embedding_size": 16}),
    "distilbert": ("DistilBertModel", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "dropout": 0.0}),
    "electra": ("ElectraModel", {"embedding_size": 32}),
    "modernbert": ("ModernBertModel", {"local_attention": 8, "global_attn_every_n_layers": 2}),
    "esm": ("EsmModel", {"position_embedding_type": "rotary", "mask_token_id": 3}),
}
VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTModel", IMAGE),
    "deit": ("DeiTModel", IMAGE),
    "dinov2": ("Dinov2Model", IMAGE),
    "clip": ("CLIPVisionModel", IMAGE),
    "siglip": ("SiglipVisionModel", IMAGE),
    "swin": ("SwinModel", {**IMAGE, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2}),
}
STACK = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
TWO_STACKS = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in STACK.items()}
TWO_STACKS |= {"d_model": 32, "dropout": 0.0, "decoder_start_token_id": 1}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
PAIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", {**TWO_STACKS, "forced_eos_token_id": None}),
    "t5": ("T5ForConditionalGeneration", T5),
    "whisper": (
        "WhisperForConditionalGeneration",
        {**TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64},
    ),
}
FAMILIES = {**DECODERS, **ENCODERS, **VISION, **PAIRED}


def build(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """Return the family's tiny model with the weights of a seed, attending by its own eager code."""
    name, own = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(seed)
    shared = {} if family == "swin" else TEXT  # it has a number of heads a stage
    model = kind(kind.config_class(**{**shared, **own, **changes}, attn_implementation="eager"))
    if family == "gpt_oss":
        model.set_experts_implementation("eager")  # the only one that runs in float64
    with torch.no_grad():
        for parameter in model.parameters():
            # As initialised, most families attend almost evenly; these logits spread over several nats.
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model.eval()


def tokens(seed: int = 0, batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    """Return ids that are no marker of any family."""
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def inputs(family: str, seed: int = 0) -> dict[str, Any]:
    """Return what the family's forward takes."""
    generator = torch.Generator().manual_seed(seed)
    if family in VISION:
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    if family == "whisper":
        features = torch.randn(2, 8, 32, generator=generator)
        return {"input_features": features, "decoder_input_ids": tokens(seed + 1)}
    if family in PAIRED:
        return {"input_ids": tokens(seed), "decoder_input_ids": tokens(seed + 1, length=9)}
    return {"input_ids": tokens(seed)}


def output(model: Any, **arguments: Any) -> torch.Tensor:
    """Return the main output of a forward pass: logits, or the last hidden state."""
    with torch.no_grad():
        result = model(**arguments)
    return result.logits if hasattr(result, "logits") else result.last_hidden_state
