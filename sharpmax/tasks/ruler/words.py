"""Aggregation, by RULER: which words come most often? `cwe` in a numbered list, `fwe` in a text by Zipf's law."""

import math
import string

import numpy as np

from sharpmax.tasks.prompt import Prompt, check_size
from sharpmax.tasks.words import ADJECTIVES, NOUNS

COMMON = 10
LONG_LIST = 100
"""Words from which on a list repeats them as RULER does at 4,096 tokens and more: 30 and 3 times, not 6 and 1."""
LETTERS, ALPHA, CODED = 6, 2.0, 3
ZETA = math.pi**2 / 6  # of 2

COMMON_QUESTION = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 "
    "words that appear most often in the list are:"
)
CODED_QUESTION = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text? Answer: According to the coded text above, the "
    "three most frequently appeared words are:"
)


def cwe(size: int, rng: np.random.Generator) -> Prompt:
    """Ask for the ten most common of `size` different words in a list."""
    made = (first + second for first in (*ADJECTIVES, *NOUNS) for second in NOUNS if first != second)
    words = list(dict.fromkeys(made))  # some 8,600 that differ
    check_size(size, least=COMMON + 1, most=len(words))
    chosen = [words[i] for i in rng.choice(len(words), size, replace=False)]
    often, seldom = (30, 3) if size >= LONG_LIST else (6, 1)
    listed = np.array([word for i, word in enumerate(chosen) for _ in range(often if i < COMMON else seldom)])
    rng.shuffle(listed)
    context = " ".join(f"{i + 1}. {word}" for i, word in enumerate(listed))
    answer = " ".join(f"{i + 1}. {word}" for i, word in enumerate(chosen[:COMMON]))
    return Prompt(COMMON_QUESTION.format(context=context), f" {answer}", size)


def fwe(size: int, rng: np.random.Generator) -> Prompt:
    """Ask for the three most frequent coded words of a text of about `size` words; the first rank is dots."""
    check_size(size, least=60)  # below, the third and the fourth word come equally often
    counts = [int(size * rank**-ALPHA / ZETA) for rank in range(1, size + 1)]
    counts = [count for count in counts if count]
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < len(counts) - 1:
        vocabulary["".join(rng.choice(list(string.ascii_lowercase), LETTERS))] = None
    ranked = ["...", *vocabulary]
    listed = np.array([word for word, count in zip(ranked, counts, strict=True) for _ in range(count)])
    rng.shuffle(listed)
    return Prompt(CODED_QUESTION.format(context=" ".join(listed)), " " + " ".join(ranked[1 : 1 + CODED]), size)
