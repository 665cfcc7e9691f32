"""A radix tree of prefixes: a lookup costs the length of the prompt, however many prefixes there are."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from car_engine.batching.prefix import WORTH_TOKENS, Prefix, common_of

Item = TypeVar("Item")


class _Node(Generic[Item]):
    """The tokens after its parent's, in memory of their own; `items` end with its last token."""

    __slots__ = ("children", "items", "parent", "tokens")

    def __init__(self, parent: "_Node[Item] | None", tokens: NDArray[np.int32]) -> None:
        self.parent = parent
        self.tokens = tokens.copy()
        self.children: dict[int, _Node[Item]] = {}  # by first token
        self.items: list[Item] = []

    def below(self, apart: "_Node[Item] | None" = None) -> Iterator[Item]:
        """Yield the items here and in all branches but one child."""
        nodes = [self]
        while nodes:
            node = nodes.pop()
            yield from node.items
            nodes += (child for child in node.children.values() if child is not apart)


class PrefixTree(Generic[Item]):
    """Items by prefix, in one tree for each namespace and step."""

    def __init__(self) -> None:
        self._roots: dict[tuple[str, int], _Node[Item]] = {}
        self._nodes: dict[Item, tuple[tuple[str, int], _Node[Item]]] = {}  # where each item ends, and in which tree

    def __repr__(self) -> str:
        return f"<PrefixTree {len(self._nodes)} items in {len(self._roots)} namespaces>"

    def add(self, prefix: Prefix, item: Item) -> None:
        """Add an item that is not in the tree."""
        key = prefix.namespace, prefix.step
        node = self._roots.setdefault(key, _Node(None, prefix.tokens[:0]))
        left = prefix.tokens
        while len(left):
            child = node.children.get(int(left[0]))
            if child is None:
                child = node.children[int(left[0])] = _Node(node, left)
            elif (common := common_of(child.tokens, left)) < len(child.tokens):
                child = _split(child, common)
            node, left = child, left[len(child.tokens) :]
        node.items.append(item)
        self._nodes[item] = key, node

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there, and the branches that end in nothing."""
        if item not in self._nodes:
            return
        key, node = self._nodes.pop(item)
        node.items.remove(item)
        while not node.items and not node.children and (parent := node.parent) is not None:
            del parent.children[int(node.tokens[0])]
            node = parent
        if node.parent is None and not node.items and not node.children:
            del self._roots[key]

    def matches(self, prefix: Prefix) -> Iterator[tuple[int, Item]]:
        """Yield each item with the number of its tokens that a prompt can reuse, the greatest number first."""
        apart: _Node[Item] | None = None
        for depth, node in reversed(self._path(prefix)):
            common = prefix.whole(depth)
            if depth < WORTH_TOKENS or not common:
                return
            for item in node.below(apart):
                yield common, item
            apart = node

    def contained(self, prefix: Prefix) -> list[Item]:
        """Return the items whose prefix this one begins with, or equals, the shortest first."""
        return [item for _, node in self._whole(prefix) for item in node.items]

    def branches(self, prefix: Prefix) -> list[int]:
        """Return after how many tokens of a prefix items begin to differ from it."""
        inside = [(depth, node) for depth, node in self._whole(prefix) if depth < len(prefix)]
        return [depth for depth, node in inside if node.children.keys() - {int(prefix.tokens[depth])}]

    def _whole(self, prefix: Prefix) -> list[tuple[int, _Node[Item]]]:
        """Return the nodes whose tokens a prefix has all, each with the tokens up to its end."""
        whole: list[tuple[int, _Node[Item]]] = []
        before = 0
        for depth, node in self._path(prefix):
            if depth - before == len(node.tokens):
                whole.append((depth, node))
            before = depth
        return whole

    def _path(self, prefix: Prefix) -> list[tuple[int, _Node[Item]]]:
        """Return the nodes along a prefix, each with the tokens in common up to its end."""
        node = self._roots.get((prefix.namespace, prefix.step))
        path: list[tuple[int, _Node[Item]]] = []
        depth = 0
        while node is not None and depth < len(prefix):
            node = node.children.get(int(prefix.tokens[depth]))
            if node is not None:
                common = common_of(node.tokens, prefix.tokens[depth:])
                depth += common
                path.append((depth, node))
                if common < len(node.tokens):
                    break
        return path


def _split(node: _Node[Item], length: int) -> _Node[Item]:
    """Put a node with the first tokens of another one above it; return the new one."""
    parent = node.parent
    assert parent is not None
    upper = parent.children[int(node.tokens[0])] = _Node(parent, node.tokens[:length])
    node.tokens, node.parent = node.tokens[length:].copy(), upper
    upper.children[int(node.tokens[0])] = node
    return upper
