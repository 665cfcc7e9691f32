"""Tokens whose cells exist, and who may use them."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer tokens than the smallest chunk of a prompt are as quickly computed as copied.
WORTH_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Tokens as they stand in a sequence from its first cell on; nobody of another namespace may use the cells."""

    tokens: NDArray[np.int32]
    namespace: str

    def __len__(self) -> int:
        return len(self.tokens)

    def shared(self, other: "Prefix") -> int:
        """Return how many tokens both begin with; 0 across namespaces and where it would not pay."""
        if self.namespace != other.namespace:
            return 0
        count = min(len(self), len(other))
        different = np.flatnonzero(self.tokens[:count] != other.tokens[:count])
        shared = int(different[0]) if len(different) else count
        return shared if shared >= WORTH_TOKENS else 0

    def cut(self, count: int) -> "Prefix":
        """Return the first `count` tokens."""
        return Prefix(self.tokens[:count], self.namespace)


def prefix_of(tokens: Rows[int], namespace: str) -> Prefix:
    """Return tokens as a prefix."""
    return Prefix(np.array(tokens, np.int32), namespace)
