"""What is held in memory for clients until they go on: frames that are not carried out, and output that was not read.

Answers that wait for others of their batch count too. Requests do not: the queue bounds them.
"""

from collections import Counter
from collections.abc import Callable

from car_daemon.peer import Peer

# Far more than clients that behave need together, far less than a machine has that runs models.
_MOST_BYTES = 256 * 1024 * 1024


class Share:
    """What is held at one place for a connection of `peer`; `measure` tells the bytes, `abandon` ends it."""

    def __init__(self, held: "HeldBytes", peer: Peer, measure: Callable[[], int], abandon: Callable[[], None]) -> None:
        self._held = held
        self.peer = peer
        self.measure = measure
        self.abandon = abandon
        # Mutable state: the bytes when they were last counted.
        self.size = 0

    def changed(self) -> None:
        """Have what is held now counted; where all clients hold too much one of them is ended."""
        self._held.changed(self)


# Makes a share of one connection from what measures it.
Sharing = Callable[[Callable[[], int]], Share]


class HeldBytes:
    """Bounds what is held for all clients: where it is too much, the process with the most loses a connection."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        # Mutable state: the shares that hold anything, and all of their bytes.
        self._shares: set[Share] = set()
        self.total = 0

    def changed(self, share: Share) -> None:
        """Count a share again, and make room where that is too much."""
        self._count(share, share.measure())
        if self.total > self._most:
            # A client that reads is heard of again only once it has read everything.
            for other in list(self._shares):
                self._count(other, other.measure())
        while self.total > self._most:
            largest = self._largest()
            self._count(largest, 0)
            largest.abandon()

    def _count(self, share: Share, size: int) -> None:
        self.total += size - share.size
        share.size = size
        (self._shares.add if size else self._shares.discard)(share)

    def _largest(self) -> Share:
        """Return the largest share of the process that has most: it may have many small ones."""
        by_peer: Counter[Peer] = Counter()
        for share in self._shares:
            by_peer[share.peer] += share.size
        heaviest = max(by_peer, key=lambda peer: by_peer[peer])
        return max((share for share in self._shares if share.peer == heaviest), key=lambda share: share.size)
