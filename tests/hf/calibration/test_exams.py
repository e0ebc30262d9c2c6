"""Exams take text evenly, in windows that the model holds."""

import torch

from sharpmax.hf.calibration.exams import held_out_exam, spread
from tests.hf.tiny import tiny


def test_text_is_taken_evenly_from_all_of_it():
    ids = torch.arange(1000)[None]
    assert spread(ids, 30, 10)[0, ::10].tolist() == [0, 500, 990]
    for tokens in (9, 1000, 2000):
        assert spread(ids, tokens, 10).equal(ids[:, :tokens])
    every = spread(ids, 990, 10)[0]
    assert len(every) == len(set(every.tolist())) == 990


def test_the_usual_windows_are_those_that_the_model_holds():
    usual = {context: tiny("llama", max_position_embeddings=context) for context in (64, 512, 4096)}
    windows = {n: held_out_exam(loaded, sizes=(2,), prompts=1).windows for n, loaded in usual.items()}
    assert windows == {64: [64], 512: [256], 4096: [256, 1024, 4096]}
