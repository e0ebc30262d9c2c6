"""CLRS-Text (arXiv 2406.04229): thirty textbook algorithms as questions and answers in plain text.

The text comes from DeepMind's own generator in `dm-clrs`, fetched, never rewritten (`generator.py`). Around it: streams
with explicit seeds and the published validation convention (`examples.py`), and what is trained on and what is asked,
kept apart and kept on disk (`corpus.py`).

Twelve of the algorithms are also computed here, for whole batches on any device: the published lengths (`protocol.py`),
inputs (`inputs.py`), answers (`answers.py`) and tokens (`tokens.py`, `sequences.py`), checked against that text.
"""
