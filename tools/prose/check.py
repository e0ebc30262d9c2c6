"""Find faults of prose in a page: too long a line, paragraph or sentence, and words that the list bans."""

import re
from collections.abc import Iterator
from pathlib import Path

from tools.prose.paragraphs import paragraphs

LINE = 120  # characters
PARAGRAPH = 90  # words
SENTENCE = 40  # words; the style asks for 25, and this stops what nobody can read aloud
CODE = re.compile(r"`[^`]*`")
SENTENCE_END = re.compile(r"(?<=[.!?:;])[\"')*]*\s+")


PAGES_ALONE = "# In pages alone"


def banned_words(*, in_source: bool) -> list[tuple[re.Pattern[str], str]]:
    """Return each banned pattern with what to write instead; in source those of pages alone are names."""
    text = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8")
    lines = (text.partition(PAGES_ALONE)[0] if in_source else text).splitlines()
    pairs = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in pairs]


BANNED = {in_source: banned_words(in_source=in_source) for in_source in (False, True)}


def words_of(text: str, *, in_source: bool = False) -> Iterator[str]:
    """Yield what the word list says of a text; in a page what is marked as code is none of its words."""
    text = text if in_source else CODE.sub("`…`", text)
    for pattern, instead in BANNED[in_source]:
        for found in pattern.finditer(text):
            yield f'"{found[0]}": write {instead}'


def faults(page: str) -> Iterator[str]:
    """Yield every fault of a page of Markdown as `line: what is wrong`."""
    for part in paragraphs(page):
        for offset, line in enumerate(part.lines):
            if len(line) > LINE:
                yield f"{part.line + offset}: a line of {len(line)} characters; {LINE} are allowed"
        if len(part.words) > PARAGRAPH:
            yield f"{part.line}: a paragraph of {len(part.words)} words; {PARAGRAPH} are allowed"
        for sentence in SENTENCE_END.split(part.text):
            count = len([word for word in sentence.split() if re.search(r"\w", word)])
            if count > SENTENCE:
                yield f"{part.line}: a sentence of {count} words; {SENTENCE} are allowed: {sentence[:60]}…"
        for said in words_of(part.text):
            yield f"{part.line}: {said}"
