"""Prompts that were prepared and wait for a lease: what begins like them will soon be used."""

from collections import OrderedDict, deque
from itertools import islice

import numpy as np

from car_base.ipc.types import AdapterSet
from car_engine.batching.prefix import Prefix

# Prompts remembered; for one more the oldest is forgotten, whose request may have been cancelled.
_MOST = 64
# The oldest of them, which probably start first, are looked at: all would take milliseconds of a step.
_NEXT = 16


def cells_of(namespace: str, adapters: AdapterSet) -> str:
    """Return the name under which cells are reused: cells of other adapters are different.

    Adapters of scale 0 change nothing, and their order neither.
    """
    return f"{namespace}\n{sorted(each for each in adapters if each[1])}"


class Expected:
    """The prompts that wait: any thread may `note` and `drop` them, and the loop alone reads them."""

    def __init__(self) -> None:
        # Appending to a deque is atomic; what was dropped comes without a prefix.
        self._noted: deque[tuple[int, Prefix | None]] = deque()
        self._prefixes: OrderedDict[int, Prefix] = OrderedDict()  # by request, the oldest first

    def __repr__(self) -> str:
        return f"<Expected {len(self._prefixes)} prompts>"

    def note(self, key: int, tokens: bytes, namespace: str) -> None:
        """Remember a prompt of int32 tokens that was prepared, under the name of its cells."""
        self._noted.append((key, Prefix(np.frombuffer(tokens, np.int32), namespace)))

    def drop(self, key: int) -> None:
        """Forget the prompt of a request that starts, or was cancelled."""
        self._noted.append((key, None))

    @property
    def prompts(self) -> list[tuple[int, Prefix]]:
        """The prompts that wait and probably start first, with the keys of their requests."""
        while self._noted:
            key, prefix = self._noted.popleft()
            if prefix is None:
                self._prefixes.pop(key, None)
            else:
                self._prefixes[key] = prefix
        while len(self._prefixes) > _MOST:
            self._prefixes.popitem(last=False)
        return list(islice(self._prefixes.items(), _NEXT))
