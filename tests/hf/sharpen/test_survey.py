"""Every model type of transformers is served exactly, refused by name, or not built here: docs/reference/families.md.

The page is of one version of transformers. With another, no type may be wrong; the page is then generated anew.
"""

import re
from collections import Counter

import pytest
import transformers

from tests.hf.sharpen.survey.judge import REFUSED, SERVED, WRONG, judge
from tests.hf.sharpen.survey.table import FILE, candidates, classes, page, row, rows_of_others, survey, survey_others

TYPES = [
    "llama", "bert", "t5", "swin",
    "bloom", "falcon", "gptj", "gpt_neo", "deberta-v2", "longformer",  # attend in code of their own: refused
    "nllb-moe", "informer", "splinter", "align_text_model", "clap_text_model", "bigbird_pegasus",  # only eager
    "deepseek_v32", "deepseek_v4",  # choose keys themselves
    "markuplm", "eomt",  # hide by -1e4 and -1e9
    "qwen2_5_vl_vision", "detr",
]  # fmt: skip
"""A few of each kind, those first that were wrong once."""
SAME_VERSION = re.search(r"transformers ([\d.]+) has", FILE.read_text(encoding="utf-8"))[1] == transformers.__version__


@pytest.mark.parametrize("model_type", TYPES)
def test_a_family_is_served_or_refused_as_the_page_says(model_type):
    verdict = judge(model_type, candidates()[model_type])
    assert verdict.status != WRONG, verdict.why
    if SAME_VERSION:
        assert row(verdict) in FILE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("model_type", ["albert", "opt"])
def test_other_classes_of_a_family_are_served_as_the_page_says(model_type):
    others = [judge(model_type, [name]) for name in candidates()[model_type][1:]]
    assert not [one for one in others if one.status == WRONG]
    if SAME_VERSION:
        assert rows_of_others(others)[0] in FILE.read_text(encoding="utf-8").splitlines()


def test_the_page_names_every_model_type_and_none_is_wrong():
    text = FILE.read_text(encoding="utf-8")
    assert "**Wrong**" not in text
    assert "## Wrong" not in text
    if SAME_VERSION:
        named = re.findall(r"^\| `([^`]+)` \|", text.partition("## Other classes")[0], re.MULTILINE)
        assert sorted(named) == sorted(candidates())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated")  # of modules that transformers imports for a class
def test_the_page_is_what_a_survey_finds():
    """One class of every type; all the others of every eighth, which is minutes in place of half an hour."""
    verdicts = survey()
    others = survey_others(verdicts[::8])
    assert not [one for one in (*verdicts, *others) if one.status == WRONG]
    if SAME_VERSION:
        first, _, rest = FILE.read_text(encoding="utf-8").partition("## Other classes")
        assert first.splitlines()[6:] == page(verdicts, others).partition("## Other classes")[0].splitlines()[6:]
        assert set(rows_of_others(others)) <= set(rest.splitlines())
        named = set(re.findall(r"\w+", first + rest))
        exported = [name for names in classes().values() for name in names if hasattr(transformers, name)]
        assert not [name for name in exported if name not in named]
        count = Counter(one.status for one in verdicts)
        assert f"**{count[SERVED]} are served, {count[REFUSED]} are refused by name" in first
