"""The limit on memory that buffers use for all clients: received frames, unread output, answers of incomplete batches.

Requests themselves do not count: the queue bounds them.
"""

from collections import Counter
from collections.abc import Callable

from car_protocol.limits import MAX_CLIENT_BYTES

# Returns the number of an identity, and the pid of its process.
Owner = Callable[[], tuple[int, int]]


class MemoryShare:
    """The bytes of one buffer of a connection, as `measure` returns them; `abandon` ends the connection.

    `owner` returns the number of the identity of its last call, and the pid of its process.
    """

    def __init__(
        self, limit: "ClientMemoryLimit", owner: Owner, measure: Callable[[], int], abandon: Callable[[], None]
    ) -> None:
        self._limit = limit
        self.owner = owner
        self.measure = measure
        self.abandon = abandon
        self.size = 0  # in bytes, when last counted

    def changed(self) -> None:
        """Count the bytes again; if all shares exceed the limit a connection is ended."""
        self._limit.changed(self)


# Makes a share of one connection from the function that measures it.
Sharing = Callable[[Callable[[], int]], MemoryShare]


class ClientMemoryLimit:
    """Bounds all shares together: beyond `most` bytes the user with the most loses a connection.

    Each connected user keeps a floor: the server admits so few users that the one with the most is above it.
    """

    def __init__(self, most: int = MAX_CLIENT_BYTES) -> None:
        self._most = most
        self._shares: set[MemoryShare] = set()  # the shares that are not empty
        self.total = 0  # of their bytes

    def __repr__(self) -> str:
        return f"<ClientMemoryLimit bytes={self.total} of={self._most} shares={len(self._shares)}>"

    def changed(self, share: MemoryShare) -> None:
        """Count a share again, and abandon the largest shares while all exceed the limit."""
        self._count(share, share.measure())
        if self.total > self._most:
            # A client that reads reports again only once it has read everything.
            for other in list(self._shares):
                self._count(other, other.measure())
        while self.total > self._most:
            largest = self._largest()
            self._count(largest, 0)
            largest.abandon()

    def _count(self, share: MemoryShare, size: int) -> None:
        self.total += size - share.size
        share.size = size
        (self._shares.add if size else self._shares.discard)(share)

    def _largest(self) -> MemoryShare:
        """Return the largest share of the heaviest process of the heaviest identity: many small shares add up."""
        by_identity: Counter[int] = Counter()
        by_process: Counter[tuple[int, int]] = Counter()
        for share in self._shares:
            identity, pid = share.owner()
            by_identity[identity] += share.size
            by_process[identity, pid] += share.size
        heaviest = max(by_process, key=lambda each: (by_identity[each[0]], by_process[each]))
        return max((share for share in self._shares if share.owner() == heaviest), key=lambda share: share.size)
