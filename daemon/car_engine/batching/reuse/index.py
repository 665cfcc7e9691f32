"""All cells and checkpoints by their tokens, and the places from which a prompt can go on in each."""

from bisect import bisect
from typing import NamedTuple, TypeVar

from car_engine.batching.costs import MOST_GUESSED
from car_engine.batching.prefix import Checkpoint, Prefix, SavedPrefix
from car_engine.batching.reuse.prefix_tree import PrefixTree
from car_engine.batching.reuse.stored_prefix import StoredPrefix, in_files
from car_engine.batching.sequences import Sequence

Cells = Sequence | SavedPrefix | StoredPrefix
Outside = TypeVar("Outside", SavedPrefix, StoredPrefix)


class Memory(NamedTuple):
    """The memory of a model's sequences: cells alone, or also states, or windows that keep the last cells.

    Cells alone are cut after any token. States and windows belong to one position. `rollback` is the number of rows of
    the last decode by which states go back, once until the next decode.
    """

    states: bool = False
    windows: bool = False
    rollback: int = 0

    @property
    def cuts_anywhere(self) -> bool:
        """Whether a sequence can go on after any of its tokens; else only at its end and at a checkpoint."""
        return not (self.states or self.windows)

    @property
    def takes_back(self) -> bool:
        """Whether all rows of the last decode can be removed."""
        return not self.states

    @property
    def guesses(self) -> int:
        """The most rows of guesses of a decode that can be removed."""
        return self.rollback if self.states else MOST_GUESSED


class Mark(NamedTuple):
    """Cells with `common` tokens of a prompt, which can go on after `tokens` tokens; 0 if there is no mark."""

    source: Cells
    common: int
    tokens: int

    @property
    def cells(self) -> int:
        """The cells of the source."""
        return _count(self.source)


class Index:
    """Finds cells in sequences, in host memory and in files."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._cells: PrefixTree[Cells] = PrefixTree()
        self._checkpoints: PrefixTree[Checkpoint] = PrefixTree()  # apart: lookups of cells do not pass them

    def __repr__(self) -> str:
        return f"<Index {self._cells!r} {self._checkpoints!r}>"

    def put(self, item: Cells | Checkpoint) -> None:
        """Add cells or a checkpoint, or find a sequence under its present prefix."""
        self.drop(item)
        if isinstance(item, Checkpoint):
            self._checkpoints.add(item.prefix, item)
        elif item.prefix is not None:
            self._cells.add(item.prefix, item)

    def drop(self, item: Cells | Checkpoint) -> None:
        """Remove cells or a checkpoint, if they are there."""
        if isinstance(item, Checkpoint):
            self._checkpoints.discard(item)
        else:
            self._cells.discard(item)

    def marks(self, prompt: Prefix) -> list[Mark]:
        """Return all cells that begin like a prompt, the cells with most tokens in common first.

        Of a request that runs, these are also the cells that it will have.
        """
        lengths = self._lengths(prompt)
        found = [Mark(item, common, self._best(item, common, lengths)) for common, item in self._cells.matches(prompt)]
        return found + self.files(prompt, lengths)

    def present(self, prompt: Prefix) -> list[Mark]:
        """Return all cells that begin like a prompt, as far as they are computed."""
        marks, lengths = self.marks(prompt), self._lengths(prompt)
        return [
            mark
            if mark.tokens <= mark.cells
            else mark._replace(tokens=self._best(mark.source, prompt.whole(mark.cells), lengths))
            for mark in marks
        ]

    def files(self, prompt: Prefix, checkpoints: tuple[int, ...] = ()) -> list[Mark]:
        """Return the cells in files that begin like a prompt; of a memory with states there may be checkpoints."""
        if (named := in_files(prompt)) is None:
            return []
        found = ((common, item) for common, item in self._cells.matches(named) if isinstance(item, StoredPrefix))
        return [Mark(item, common, self._best(item, common, checkpoints)) for common, item in found]

    def checkpoint(self, prefix: Prefix) -> Checkpoint | None:
        """Return the longest checkpoint that these tokens begin with."""
        return max(self.checkpoints(prefix), key=lambda each: len(each.prefix), default=None)

    def checkpoints(self, prefix: Prefix) -> list[Checkpoint]:
        """Return the checkpoints that these tokens begin with."""
        return self._checkpoints.contained(prefix)

    def partings(self, prefix: Prefix) -> list[int]:
        """Return after how many of these tokens cells or checkpoints part."""
        return self._cells.branches(prefix) + self._checkpoints.branches(prefix)

    def replaced(self, new: Outside) -> list[Outside]:
        """Return cells of the same place that new cells replace: prompts can go on in the new cells at their end."""
        ends = {len(new.prefix), *self._lengths(new.prefix)}
        ends |= set(new.marks if isinstance(new, StoredPrefix) else ())
        contained = self._cells.contained(new.prefix)
        same = [each for each in contained if isinstance(each, type(new)) and each is not new]
        return same if self.memory.cuts_anywhere else [each for each in same if len(each.prefix) in ends]

    def _lengths(self, prompt: Prefix) -> tuple[int, ...]:
        return tuple(len(each.prefix) for each in self.checkpoints(prompt))

    def _best(self, item: Cells, common: int, checkpoints: tuple[int, ...]) -> int:
        """Return after how many of the common tokens a prompt can go on; the checkpoints ascend."""
        if self.memory.cuts_anywhere:
            return common
        assert item.prefix is not None
        before, end = bisect(checkpoints, common), _count(item)
        ends = [*checkpoints[max(0, before - 1) : before], *(item.marks if isinstance(item, StoredPrefix) else ())]
        if end == item.prefix.whole(end):
            ends.append(end)
        return max((length for length in ends if length <= common), default=0)


def _count(item: Cells) -> int:
    match item:
        case Sequence():
            return item.cells
        case SavedPrefix():
            return item.count
    return len(item.prefix)
