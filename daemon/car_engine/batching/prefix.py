"""Tokens whose cells exist, and the namespace that may reuse them."""

from collections import abc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The smallest chunk of a prompt: fewer tokens take no longer to compute than to copy.
WORTH_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Tokens of a sequence from its first cell on; only requests of the same namespace may reuse the cells.

    `step` is the size of the grid of reproducible requests, 1 for others: cells are reused in multiples of it, by
    requests with the same step, because cells that were computed in other pieces have other values.
    """

    tokens: NDArray[np.int32]
    namespace: str
    step: int = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def common(self, other: "Prefix") -> int:
        """Return how many common tokens can be reused; 0 across namespaces, and below the tokens worth copying."""
        if (self.namespace, self.step) != (other.namespace, other.step):
            return 0
        common = common_of(self.tokens, other.tokens)
        return self.whole(common) if common >= WORTH_TOKENS else 0

    def cut(self, count: int) -> "Prefix":
        """Return the first `count` tokens."""
        return Prefix(self.tokens[:count], self.namespace, self.step)

    def copied(self) -> "Prefix":
        """Return the same tokens in memory of their own: a part of a prompt keeps the whole prompt in memory."""
        return Prefix(self.tokens.copy(), self.namespace, self.step)

    def whole(self, count: int) -> int:
        """Return the largest multiple of the step up to `count`."""
        return count - count % self.step

    def after(self, sampled: list[int]) -> "Prefix":
        """Return the tokens whose cells stay after an answer.

        Of a reproducible request these are the whole pieces of its prompt: later prompts contain the answer as a part
        of such a piece, if it was computed token by token.
        """
        if self.step > 1:
            return self.cut(self.whole(len(self)))
        return Prefix(np.concatenate((self.tokens, np.array(sampled, np.int32))), self.namespace)


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """Cells in host memory that any prompt with this prefix can reuse, and the state after all `count` cells.

    If a request answered already, it has more cells than the prefix has tokens.
    """

    prefix: Prefix
    cells: memoryview
    count: int

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.cells)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state after some tokens: any cells that begin with these tokens can go on with it."""

    prefix: Prefix
    state: memoryview

    @property
    def size(self) -> int:
        """Bytes, with the tokens' own, because a state may be smaller."""
        return len(self.state) + self.prefix.tokens.nbytes


def common_of(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return with how many equal tokens both begin."""
    count = min(len(one), len(other))
    different = one[:count] != other[:count]
    first = int(different.argmax()) if count else 0
    return first if count and different[first] else count


def prefix_of(tokens: abc.Sequence[int], namespace: str, step: int = 1) -> Prefix:
    """Return tokens as a prefix."""
    return Prefix(np.array(tokens, np.int32), namespace, step)
