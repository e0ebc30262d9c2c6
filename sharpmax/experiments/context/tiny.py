"""A Llama of two layers that learns characters in seconds: the quick run's model, and a context of its own to leave."""

from sharpmax.extras import extra
from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.models.gemma import character_tokenizer
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import stage
from sharpmax.tasks.documents import Document

with extra("hf"):
    import torch
    import transformers

TINY = "tiny"
TRAINED, STEPS, BATCH, RATE = 64, 60, 16, 3e-3


def reads_tiny(model: str) -> bool:
    """Tell whether a plan's model is the one that is trained here."""
    return model == TINY


def tiny_documents(split: str) -> list[Document]:
    """Return Python's reference of a split in documents of so many characters."""
    text, length = text_of(split), 8 * TRAINED
    return [Document(f"part{start // length}", text[start : start + length]) for start in range(0, 8 * length, length)]


def train_tiny(seed: int = 0) -> LoadedModel:
    """Return a model that was trained on windows of 64 characters of Python's reference, the split to fit on."""
    tokenizer = character_tokenizer()
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TRAINED, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    loaded = LoadedModel(TINY, model, tokenizer)
    text = loaded.tokens(text_of("fit")[:100_000])[0]
    draws = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    with stage("training a tiny Llama", STEPS) as advance:
        for _ in range(STEPS):
            starts = torch.randint(len(text) - TRAINED, (BATCH,), generator=draws)
            ids = torch.stack([text[start : start + TRAINED] for start in starts.tolist()])
            optimiser.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            advance()
    model.eval()
    return loaded
