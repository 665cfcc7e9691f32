"""What is held in memory for clients until they go on: frames that they began, and output that they have not read."""

from collections.abc import Callable

# Far more than clients that behave need together, far less than a machine has that runs models.
_MOST_BYTES = 256 * 1024 * 1024


class Share:
    """What is held for one client at one place; `abandon` ends the client."""

    def __init__(self, held: "HeldBytes", abandon: Callable[[], None]) -> None:
        self._held = held
        self.abandon = abandon
        # Mutable state: bytes.
        self.size = 0

    def hold(self, size: int) -> None:
        """Hold so many bytes from now on; raises nothing, but may end the client that has most."""
        before, self.size = self.size, size
        self._held.changed(self, before)


class HeldBytes:
    """Bounds what is held for all clients together: where it is too much, the client with the largest share goes."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        # Mutable state: the shares that hold anything, and all of their bytes.
        self._shares: set[Share] = set()
        self.total = 0

    def changed(self, share: Share, before: int) -> None:
        """Take another size of a share into account."""
        self.total += share.size - before
        (self._shares.add if share.size else self._shares.discard)(share)
        if self.total > self._most:
            largest = max(self._shares, key=lambda other: other.size)
            largest.hold(0)
            largest.abandon()
