"""A Llama of two layers that learns characters in seconds: a model with a context of its own to leave."""

from sharpmax.extras import extra
from sharpmax.hf.models.gemma import character_tokenizer
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import stage

with extra("hf"):
    import torch
    import transformers

TINY = "tiny"
TRAINED, STEPS, BATCH, RATE = 64, 60, 16, 3e-3


def train_tiny_llama(text: str, *, seed: int = 0) -> LoadedModel:
    """Return a model that was trained on windows of 64 characters of a text.

    >>> train_tiny_llama("to be or not to be, that is the question. " * 20).context
    64
    """
    tokenizer = character_tokenizer()
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    loaded = LoadedModel(TINY, model, tokenizer)
    ids = loaded.tokens(text)[0]
    draws = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    with stage("training a tiny Llama", STEPS) as advance:
        for _ in range(STEPS):
            starts = torch.randint(len(ids) - TRAINED, (BATCH,), generator=draws)
            batch = torch.stack([ids[start : start + TRAINED] for start in starts.tolist()])
            optimiser.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()
            advance()
    model.eval()
    return loaded
