"""The questions, answers and pages that the guide model learns."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One answer and all phrasings that get it, the main phrasing first."""

    phrasings: tuple[str, ...]
    answer: str
    long: bool = False


@dataclass(frozen=True)
class Corpus:
    """Everything that is trained, and a few questions that are not."""

    entries: tuple[Entry, ...]
    fallback: Entry
    unseen: tuple[str, ...]
    systems: tuple[str, ...]
    pages: str

    def all_entries(self) -> tuple[Entry, ...]:
        """The entries with the fallback as the last one."""
        return (*self.entries, self.fallback)

    def texts(self) -> list[str]:
        """Every text once, for the tokenizer to learn from."""
        texts = [self.pages, *self.systems, "system\n", "user\n", "assistant\n"]
        for entry in self.all_entries():
            texts += [entry.answer, *entry.phrasings]
        return texts


def load(folder: Path = FOLDER) -> Corpus:
    """Read questions.toml and pages.md; ValueError when one phrasing stands in two places."""
    data = tomllib.loads((folder / "questions.toml").read_text(encoding="utf-8"))
    entries = tuple(
        Entry((item["question"], *item["also"]), item["answer"], item.get("long", False)) for item in data["entry"]
    )
    corpus = Corpus(
        entries=entries,
        fallback=Entry(tuple(data["fallback"]["questions"]), data["fallback"]["answer"]),
        unseen=tuple(data["fallback"]["unseen"]),
        systems=tuple(data["systems"]["texts"]),
        pages=(folder / "pages.md").read_text(encoding="utf-8"),
    )
    _refuse_ambiguity(corpus)
    return corpus


def _refuse_ambiguity(corpus: Corpus) -> None:
    """ValueError when two entries share a phrasing up to case and final punctuation."""
    owner: dict[str, Entry] = {}
    for entry in corpus.all_entries():
        for phrasing in entry.phrasings:
            other = owner.setdefault(phrasing.lower().rstrip("?!. "), entry)
            if other is not entry:
                raise ValueError(f"two answers for {phrasing!r}")
