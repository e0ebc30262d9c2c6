"""A causal model's logits from its last hidden states: those of its own forward pass, or a refusal."""

import pytest
import torch
import transformers

import sharpmax
from sharpmax.hf import LoadedModel, sharpen
from sharpmax.hf.calibration.text_loss import text_losses
from sharpmax.hf.finetune.answer_model import answer_logits
from sharpmax.hf.models.head import require_known_head

SHAPE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
FINISHED = {
    "Llama": {},
    "Gemma2": {"head_dim": 8, "num_key_value_heads": 1, "final_logit_softcapping": 2.0},
    "Cohere": {"logit_scale": 0.25},
    "Cohere2": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0},
    "GraniteMoe": {"logits_scaling": 4.0},
}
IDS = torch.arange(24)[None] % 31


def causal(family, **options):
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = getattr(transformers, f"{family}Config")(**SHAPE, **special, **options)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # logits at which a cap and a scale are seen
    return model


@pytest.mark.parametrize("family", FINISHED)
def test_losses_and_answers_are_those_of_the_models_own_logits(family):
    model = causal(family, **FINISHED[family])
    with torch.no_grad():
        own = model(IDS, labels=IDS)
        answers = answer_logits(model, IDS, torch.arange(24))
    assert text_losses(LoadedModel(family, model, None), IDS, window=24) == pytest.approx([own.loss.item()], abs=1e-5)
    assert (answers - own.logits[0]).abs().max() < 1e-4
    require_known_head(model)


def test_a_model_that_does_more_to_its_logits_is_refused():
    model = causal("ModernBertDecoder")
    with pytest.raises(NotImplementedError, match="ModernBertDecoderForCausalLM does more"):
        text_losses(LoadedModel("decoder", model, None), IDS, window=24)
    model = causal("Llama")
    model.config.final_logit_softcapping = 0.1  # which Llama does not apply, and we would
    with pytest.raises(NotImplementedError, match="LlamaForCausalLM does more"):
        require_known_head(model)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, that such quantisation will move
def test_an_adapter_and_a_quantised_head_are_refused_by_name():
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(causal("Llama"), LoraConfig(target_modules=["q_proj"], r=2)).eval()
    with pytest.raises(NotImplementedError, match=r"PeftModel wraps a model with an adapter.*merge_and_unload"):
        text_losses(LoadedModel("adapted", adapted, None), IDS, window=24)
    quantised = torch.ao.quantization.quantize_dynamic(causal("Llama"), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(NotImplementedError, match="the head of LlamaForCausalLM has no weight that is a tensor"):
        text_losses(LoadedModel("quantised", quantised, None), IDS, window=24)


def test_an_observer_is_told_of_the_text_alone():
    model, told = causal("Llama"), []
    with sharpen(model, sharpmax.Constant(2.0), observer=lambda layer, stats: told.append(stats.count.shape[-1])):
        text_losses(LoadedModel("llama", model, None), IDS, window=24)
    assert told == [24]
