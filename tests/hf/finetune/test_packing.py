"""Packed examples: a model that lets them reach one another beside attention is refused, whatever its family."""

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from sharpmax.hf.finetune.packing import require_apart
from tests.hf.families import TEXT, build


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "gpt2", "opt"])
def test_attention_alone_keeps_examples_apart(family):
    model = build(family).train()
    require_apart(model)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_convolution_beside_attention_is_refused_by_name():
    """Its kernels reach over the end of an example, and no mask of attention holds them back."""
    torch.manual_seed(0)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = Lfm2Config(
        **{name: TEXT[name] for name in names}, layer_types=["conv", "full_attention"], num_key_value_heads=2
    )
    with pytest.raises(NotImplementedError, match="Lfm2ForCausalLM carries something from token to token beside"):
        require_apart(Lfm2ForCausalLM(config))
