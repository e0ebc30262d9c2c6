"""Fit a small policy card to SmolLM2, look at its verdict, and serve several requests with it. Minutes on two cores.

The fit is far smaller than `sharpmax calibrate smollm2 --quick`, so that it ends in minutes: do not use its card.
"""

import tempfile

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

import sharpmax
from sharpmax.tasks.prompts import draw


def main():
    """Calibrate, say what came out, and answer four lookups with the card in one batch."""
    torch.manual_seed(0)
    smollm2 = sharpmax.hf.load("smollm2")
    with tempfile.TemporaryDirectory() as runs:
        result = sharpmax.hf.calibrate(
            smollm2,
            quick=True,
            steps=6,
            fit_sizes=(8, 8),
            sizes=(16,),
            prompts=24,
            text_tokens=1024,
            out=runs,
            quiet=True,
        )
        print("verdict:", result.verdict, "- card written:", result.card is not None)
        card = result.card or "smollm2"  # the shipped card, where this fit gained nothing
        questions = [draw("lookup", 16, seed=seed) for seed in range(4)]
        prompts = [smollm2.tokens(question.text)[0].tolist() for question in questions]
        greedy = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=-1)
        pages = ContinuousBatchingConfig(num_blocks=256, page_size=16, max_batch_tokens=512)
        with sharpmax.hf.sharpen(smollm2.model, card):
            answers = smollm2.model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=pages)
    for name, question in zip(sorted(answers), questions, strict=True):
        said = smollm2.tokenizer.decode(answers[name].generated_tokens).strip()
        print(f"said {said.split()[0]}, right{question.answer}")


if __name__ == "__main__":
    main()
