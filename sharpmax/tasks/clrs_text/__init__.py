"""CLRS-Text (arXiv 2406.04229): thirty textbook algorithms as questions and answers in plain text.

The text comes from DeepMind's own generator in `dm-clrs`, fetched, never rewritten (`generator.py`). Around it: streams
with explicit seeds and the published validation convention (`examples.py`), and what is trained on and what is asked,
kept apart and kept on disk (`corpus.py`).
"""
