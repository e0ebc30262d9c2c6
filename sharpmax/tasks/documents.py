"""Long documents without a hub: prose of a Debian package, in three splits that share no paragraph.

*An Anarchist FAQ* (Debian's package `anarchism`, GPL-2): 143 files of up to 110,000 tokens in Markdown, continuous
prose in one style. A document is one file; which split it is in follows from its name alone. A paragraph that the FAQ
quotes in a second place is kept once, and rather where it is reported on than where it is fitted.

The other package of prose in Debian, `bible-kjv-text`, packs its text in a format of its own program, which is not
read here.
"""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache

from sharpmax.files.debian import Package, files_of
from sharpmax.tasks.prompts import SPLITS

ANARCHISM = Package(
    "anarchism",
    "pool/main/a/anarchism/anarchism_15.3-3_all.deb",
    "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
)
FOLDER = "usr/share/doc/anarchism/markdown/"
NO_PROSE = frozenset({"alinks", "arlinks", "biblio", "index", "toc", "new"})  # lists of links and titles
TURNING = re.compile(r"\[[^\]]*\]\([^()]*\"Go\s+to[^()]*\)")  # links to the next page
LINK = re.compile(r"\[([^\]]*)\]\([^()]*\)")


@dataclass(frozen=True)
class Document:
    """One document of one split."""

    name: str
    text: str


def documents(split: str, *, least: int = 0) -> list[Document]:
    """Return the documents of a split of at least so many characters, in the order of their names.

    Raises:
        ValueError: no such split.
        OSError: the package is not in the cache and cannot be fetched.

    >>> documents("report", least=70_000)[0].name  # doctest: +SKIP
    'append11'
    """
    if split not in SPLITS:
        raise ValueError(f"expected a split among {', '.join(SPLITS)}, got {split!r}")
    return [document for document in _by_split()[split] if len(document.text) >= least]


def split_of(name: str) -> str:
    """Return the split of a document: a third of the names each, by their hash."""
    return SPLITS[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(SPLITS)]


@cache
def _by_split() -> dict[str, list[Document]]:
    folder = files_of(ANARCHISM, lambda path: path.startswith(FOLDER) and path.endswith((".md", ".md.gz")))
    texts = {}
    for file in sorted(folder.glob("*.md*")):
        name = file.name.split(".")[0]
        if name not in NO_PROSE:
            content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            texts[name] = LINK.sub(r"\1", TURNING.sub("", content.decode("utf-8")))
    met: set[str] = set()
    found: dict[str, list[Document]] = {split: [] for split in SPLITS}
    for split in reversed(SPLITS):
        for name in sorted(name for name in texts if split_of(name) == split):
            kept = [p for p in dict.fromkeys(_paragraphs(texts[name])) if " ".join(p.split()) not in met]
            met.update(" ".join(paragraph.split()) for paragraph in kept)
            found[split].append(Document(name, "\n\n".join(kept)))
    return found


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]
