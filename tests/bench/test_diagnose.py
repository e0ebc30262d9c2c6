"""The benchmark of diagnosis: it measures both, and says what was asked of it."""

from sharpmax.bench.diagnose import compare, show
from tests.hf.tiny import tiny


def test_a_diagnosis_is_timed_beside_a_plain_pass():
    figures = compare(tiny("llama"), "Attention that stays sharp. " * 10, 128, repeats=2, rows=4)
    assert all(len(found) == 2 and min(found) > 0 for found in figures["processor_seconds"].values())
    assert figures["ratio"] > 0
    assert 0.1 < figures["peak_gigabytes"] < 100
    assert show(figures).row_count == 4
