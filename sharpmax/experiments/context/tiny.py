"""The quick run's model and documents: Python's reference, in characters; nothing is fetched."""

from sharpmax.hf.calibration.splits import text_of
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.models.tiny_llama import TINY, TRAINED, train_tiny_llama
from sharpmax.tasks.documents import Document

READ = 100_000  # characters to train on


def reads_tiny(model: str) -> bool:
    """Tell whether a plan's model is the one that is trained here."""
    return model == TINY


def tiny_documents(split: str) -> list[Document]:
    """Return Python's reference of a split in documents of eight trained contexts."""
    text, length = text_of(split), 8 * TRAINED
    return [Document(f"part{start // length}", text[start : start + length]) for start in range(0, 8 * length, length)]


def train_tiny(seed: int = 0) -> LoadedModel:
    """Return the tiny model, trained on the split to fit on."""
    return train_tiny_llama(text_of("fit")[:READ], seed=seed)
