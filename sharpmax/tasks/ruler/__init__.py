"""RULER's six tasks that need no download, drawn by our own code; Hsieh et al., arXiv 2404.06654.

    niah_single_1     one number hidden in {size} idle lines
    niah_multikey_2   one of {size} + 1 numbers, each under a key of two words
    niah_multikey_3   the same with UUIDs as keys and as values
    vt                a chain of 5 variables hidden in {size} idle lines: which have the first one's value?
    cwe               which 10 words of a list come most often, among {size} words?
    fwe               which 3 coded words come most often, in a text of {size} of them by Zipf's law?

Wordings and counts are the benchmark's, as lm-evaluation-harness asks it. Words are our own (RULER takes its from
`wonderwords`), and a key that is asked for comes once. A question is a `Prompt`: its answer is one right answer, in a
fixed order. `score` judges a reply as RULER does: the share of the right parts that it contains, in any order.
"""

from sharpmax.tasks.ruler.niah import niah_multikey_2, niah_multikey_3, niah_single_1
from sharpmax.tasks.ruler.score import ANSWER_TOKENS, parts_of, score
from sharpmax.tasks.ruler.variables import vt
from sharpmax.tasks.ruler.words import cwe, fwe

RULER = {
    "niah_single_1": niah_single_1,
    "niah_multikey_2": niah_multikey_2,
    "niah_multikey_3": niah_multikey_3,
    "vt": vt,
    "cwe": cwe,
    "fwe": fwe,
}
"""Each task: `(size, rng) -> Prompt`."""

__all__ = ["ANSWER_TOKENS", "RULER", "parts_of", "score"]
