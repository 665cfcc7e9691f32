"""Prefixes whose cells are outside the context: those that a prompt can go on from, and those that others replace."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.prefix_tree import PrefixTree


class Kept(Protocol):
    """Cells from position `lowest` on that any prompt with this prefix can reuse."""

    @property
    def prefix(self) -> Prefix:
        """The tokens."""
        ...

    @property
    def lowest(self) -> int:
        """The lowest position with a cell."""
        ...


Item = TypeVar("Item", bound=Kept)


class KeptPrefixes(Generic[Item]):
    """Kept cells by prefix; `attends_from` returns the lowest position to which the token after some cells attends."""

    def __init__(self, attends_from: Callable[[int], int]) -> None:
        self._attends_from = attends_from
        self._tree: PrefixTree[Item] = PrefixTree()

    def add(self, item: Item) -> None:
        """Add cells that are not kept yet."""
        self._tree.add(item.prefix, item)

    def remove(self, item: Item) -> None:
        """Remove cells."""
        self._tree.remove(item.prefix, item)

    def longest(self, prefix: Prefix) -> tuple[int, Item | None]:
        """Return the number of tokens that a prompt can reuse at most, and the cells with them."""
        matches = self._tree.matches(prefix)
        return next(((tokens, item) for tokens, item in matches if self._serves(item, tokens)), (0, None))

    def replaced(self, item: Item) -> list[Item]:
        """Return the cells that these ones serve in place of: those of prefixes that theirs contains or equals."""
        return [other for other in self._tree.contained(item.prefix) if self._serves(item, len(other.prefix))]

    def _serves(self, item: Item, tokens: int) -> bool:
        return item.lowest <= item.prefix.needed_from(tokens, self._attends_from)
