"""A tiny random model that reads characters: a `LoadedModel` that needs no download."""

from types import SimpleNamespace

from sharpmax.hf import LoadedModel
from tests.hf.families import VOCABULARY, build


class Characters:
    """A tokenizer of one token a character; 3 marks the end where markers are asked for."""

    eos_token_id = None

    def __call__(self, text, add_special_tokens=False, verbose=False):
        if isinstance(text, list):
            return SimpleNamespace(input_ids=[self(one).input_ids for one in text])
        ids = [5 + ord(character) % (VOCABULARY - 5) for character in text]
        return SimpleNamespace(input_ids=[*ids, 3] if add_special_tokens else ids)

    def decode(self, ids):
        return "x" * len(ids)


def tiny(family, **changes):
    return LoadedModel(f"tiny-{family}", build(family, **{"max_position_embeddings": 256, **changes}), Characters())
