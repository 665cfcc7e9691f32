"""How plain the English of the pages is: lengths of sentences, and words that make a reader stop."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# A sentence with more words has to be read twice.
LONGEST = 35
# `ones`, `those` and `of which` stand for nouns that the reader has to look for, `where` for `if` or `when`.
# A question may begin with "Where".
_RIDDLES = re.compile(r"\b([Oo]nes|[Tt]hose|of which|where)\b")
_BLOCKS = re.compile(
    r"^(```|~~~).*?^\1$|<!-- table: .*?<!-- end -->|<!--.*?-->|^---\n.*?^---$", re.MULTILINE | re.DOTALL
)
_MARKUP = re.compile(r"`[^`]*`|!?\[([^\]]*)\]\([^)]*\)")
_ENDS = re.compile(r"(?<=[.!?:;])[\"')\]*]*\s+(?=[\"'(\[*]*[A-Z0-9`])")
_WORD = re.compile(r"[A-Za-z0-9][\w'.,/-]*")
_ROW = re.compile(r"^\s*\|(.*)\|\s*$")
_BEGINS = re.compile(r"^\s*(?:#+|[-*+]|\d+\.|>|!!!)\s+")


class Sentence(NamedTuple):
    """A sentence of a page, without its markup; `words` counts them."""

    page: Path
    text: str
    words: int


def pages() -> list[Path]:
    """Return the pages that people read in order to use card."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sentences(page: Path) -> list[Sentence]:
    """Return the sentences of a page: its code and generated tables left out, each cell of a table by itself."""
    found = []
    for paragraph in _paragraphs(_BLOCKS.sub("\n", page.read_text(encoding="utf-8"))):
        for text in _ENDS.split(_MARKUP.sub(lambda link: link[1] or "Code", paragraph)):
            words = len(_WORD.findall(text))
            if words:
                found.append(Sentence(page, " ".join(text.split()), words))
    return found


def riddles(text: str) -> list[str]:
    """Return the words of a text that stand for another word."""
    return [found.lower() for found in _RIDDLES.findall(text)]


def _paragraphs(text: str) -> list[str]:
    """Return what a reader reads in one go: a paragraph, an item of a list, a heading, a cell."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if row := _ROW.match(line):
            found += [[cell] for cell in row[1].replace("\\|", "/").split(" | ")] + [[]]
        elif _BEGINS.match(line):
            found.append([_BEGINS.sub("", line)])
            if line.lstrip().startswith("#"):
                found.append([])
        elif line.strip():
            found[-1].append(line)
        else:
            found.append([])
    return [" ".join(lines) for lines in found if lines]
