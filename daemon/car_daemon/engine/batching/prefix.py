"""Tokens whose cells exist, and the namespace that may reuse them."""

from collections import abc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer tokens than the smallest chunk of a prompt take no longer to compute than to copy.
WORTH_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Tokens of a sequence from its first cell on; only requests of the same namespace may reuse the cells."""

    tokens: NDArray[np.int32]
    namespace: str

    def __len__(self) -> int:
        return len(self.tokens)

    def common(self, other: "Prefix") -> int:
        """Return the length of the common prefix; 0 across namespaces, and below the tokens worth copying."""
        if self.namespace != other.namespace:
            return 0
        count = min(len(self), len(other))
        different = np.flatnonzero(self.tokens[:count] != other.tokens[:count])
        common = int(different[0]) if len(different) else count
        return common if common >= WORTH_TOKENS else 0

    def cut(self, count: int) -> "Prefix":
        """Return the first `count` tokens."""
        return Prefix(self.tokens[:count], self.namespace)


def prefix_of(tokens: abc.Sequence[int], namespace: str) -> Prefix:
    """Return tokens as a prefix."""
    return Prefix(np.array(tokens, np.int32), namespace)
