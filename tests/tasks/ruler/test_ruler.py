"""RULER's tasks: what a question holds, its size in tokens, its score, and the counts of lm-evaluation-harness."""

import random
import re
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from sharpmax.tasks.filling import filling
from sharpmax.tasks.prompts import SPLITS, draw, seed_of
from sharpmax.tasks.ruler import RULER, parts_of, score
from sharpmax.tasks.ruler.niah import NOISE, keys

SIZES = {"niah_single_1": 9, "niah_multikey_2": 9, "niah_multikey_3": 9, "vt": 9, "cwe": 20, "fwe": 300}
words = lambda text: len(text.split())  # noqa: E731


@pytest.mark.parametrize("task", RULER)
def test_a_draw_is_another_in_every_split(task):
    drawn = [draw(task, SIZES[task], seed=seed_of(0, split)) for split in SPLITS]
    assert len({prompt.text for prompt in drawn}) == len(SPLITS)
    assert all(prompt.answer.startswith(" ") for prompt in drawn)


@pytest.mark.parametrize("task", RULER)
def test_the_score_is_the_share_of_right_parts_in_any_order_and_case(task):
    prompt = draw(task, SIZES[task], seed=0)
    parts = parts_of(prompt)
    assert len(parts) == {"vt": 5, "cwe": 10, "fwe": 3}.get(task, 1)
    assert score(prompt, " and ".join(reversed(parts)).upper()) == 1
    assert score(prompt, "nothing of it") == 0
    assert score(prompt, parts[0]) == pytest.approx(1 / len(parts))


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "niah_multikey_3"])
@pytest.mark.parametrize("index", range(5))
def test_a_needle_is_where_its_key_is_and_nowhere_else(task, index):
    prompt = draw(task, 30, seed=0, index=index)
    (value,) = parts_of(prompt)
    asked = re.search(r"for (\S+) mentioned in the provided text is$", prompt.text)[1]
    lines = prompt.text.split("\n")[1:-1]
    assert len(lines) == 31
    said = [line for line in lines if f"for {asked} is" in line]
    assert said == [line for line in lines if value in line]
    assert said[0].endswith(f"is: {value}.")
    assert lines.count(NOISE) == (30 if task == "niah_single_1" else 0)


def test_keys_are_different_however_many():
    for count in (1, 2000, 5000):
        assert len(set(keys(count, np.random.default_rng(0)))) == count


@pytest.mark.parametrize("index", range(5))
def test_the_variables_follow_from_the_assignments(index):
    prompt = draw("vt", 12, seed=0, index=index)
    asked = prompt.text.split("\n\n", 3)[-1]
    value = re.search(r"assigned the value (\d+) in the text above", asked)[1]
    holds, found = {}, []
    for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", asked):
        holds[name] = holds.get(source, source)
        found += [name] if holds[name] == value else []
    assert found == parts_of(prompt)


@pytest.mark.parametrize(("task", "size"), [("cwe", 20), ("cwe", 120), ("fwe", 80), ("fwe", 3000)])
def test_the_most_common_words_are_the_most_common(task, size):
    prompt = draw(task, size, seed=0)
    listed = re.sub(r"\d+\. ", "", prompt.text.split("\n")[1]) if task == "cwe" else prompt.text.split("\n")[0]
    counts = Counter(word for word in listed.split() if task == "cwe" or re.fullmatch("[a-z]{6}", word))
    right = parts_of(prompt)
    least = min(counts[word] for word in right)
    assert all(count < least for word, count in counts.items() if word not in right)
    if task == "cwe":
        assert set(counts.values()) == ({30, 3} if size >= 100 else {6, 1})


@pytest.mark.parametrize("task", [*RULER, "needle", "lookup"])
@pytest.mark.parametrize("length", [1500, 6000])
def test_a_question_fills_its_length(task, length):
    size = filling(task, length, words)
    of = [words(prompt.text + prompt.answer) for prompt in (draw(task, size, seed=s) for s in range(3))]
    assert max(of) <= length
    assert min(of) > 0.85 * length or task == "lookup"  # which has no more names


def test_no_question_fits_next_to_nothing():
    with pytest.raises(ValueError, match="no question of vt fits 20 tokens"):
        filling("vt", 20, words)


def test_earlier_tasks_are_drawn_as_before():
    assert draw("maximum", 3, seed=0).answer == " 989"


class Words:
    """A tokenizer of one token a word."""

    def __call__(self, text):
        return SimpleNamespace(input_ids=text.split())


@pytest.fixture
def theirs(monkeypatch):
    """lm-evaluation-harness's own generators; `wonderwords`, whose words do not matter here, is ours."""
    pytest.importorskip("lm_eval")
    for name in ("datasets", "nltk", "wonderwords"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["datasets"].Dataset = sys.modules["datasets"].Split = object
    sys.modules["nltk"].sent_tokenize = None
    sys.modules["nltk"].data = SimpleNamespace(find=lambda _: None)
    listed = [f"w{i}" for i in range(2000)]
    of = dict.fromkeys(("nouns", "adjectives", "verbs", "noun", "adjective", "verb"), listed[:40])
    sys.modules["wonderwords"].RandomWord = lambda: SimpleNamespace(_categories={**of, "noun": listed})
    names = ["prepare_niah", "cwe_utils", "fwe_utils", "vt_utils"]
    for name in names:
        monkeypatch.delitem(sys.modules, f"lm_eval.tasks.ruler.{name}", raising=False)
    from importlib import import_module

    yield {name: import_module(f"lm_eval.tasks.ruler.{name}") for name in names}
    for name in names:
        sys.modules.pop(f"lm_eval.tasks.ruler.{name}", None)


def blanked(text):
    """Return a text with what is drawn left out: names, numbers, UUIDs and where they stand."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[A-Z]{3,5}\b|\d+|\bw\d+(-w\d+)?|\b[a-z]+-[a-z]+\b", "#", text)
    return Counter(text.split())


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "niah_multikey_3"])
def test_needles_are_worded_and_counted_as_in_the_harness(task, theirs):
    kind = {"niah_single_1": "repeat"}.get(task, "needle")
    of = ("uuids", "uuids") if task == "niah_multikey_3" else ("words", "numbers")
    niah = theirs["prepare_niah"]
    from_utils = (
        "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. I will "
        "quiz you about the {type_needle_v} afterwards.\n{context}\nWhat are all the special magic {type_needle_v} for "
        "{query} mentioned in the provided text?"
    )
    text, _, query = niah.generate_input_output(
        20, niah.get_haystack(type_haystack=kind), type_haystack=kind, type_needle_k=of[0], type_needle_v=of[1],
        num_needle_k=1, num_needle_v=1, template=from_utils,
    )  # fmt: skip
    prefix = f" The special magic {of[1][:-1]} for {query} mentioned in the provided text is"
    assert blanked(draw(task, 20, seed=0).text) == blanked(text + prefix)


def test_variables_are_worded_and_counted_as_in_the_harness(theirs):
    random.seed(0)
    text, names = theirs["vt_utils"].generate_input_output(20, 1, 4)
    ours = draw("vt", 20, seed=0)
    second = ours.text[ours.text.index("Memorize", 10) :]
    assert blanked(second) == blanked(text)
    assert len(names) == len(parts_of(ours))


def test_words_are_worded_and_counted_as_in_the_harness(theirs):
    _, text, answer = theirs["cwe_utils"].generate_input_output(50, 8192)
    ours = draw("cwe", 120, seed=0)
    head, tail = (lambda t: t.split("\n")[0], lambda t: t.split("\n")[-1])
    assert (head(ours.text), tail(ours.text)) == (head(text), tail(text))
    assert len(answer) == len(parts_of(ours))
    assert set(Counter(re.findall(r"\d+\. (\w+)", text)).values()) == {30, 3}
    text, answer, size = theirs["fwe_utils"].generate_input_output(2000, Words(), num_words=1500)
    ours = draw("fwe", size, seed=0)
    counts = [sorted(Counter(re.findall(r"\b[a-z]{6}\b|\.\.\.", t.split("\n")[0])).values()) for t in (text, ours.text)]
    assert tail(text) == tail(ours.text)
    assert len(answer) == len(parts_of(ours))
    assert counts[0][-8:] == counts[1][-8:]
