"""Whose turn it is: adapters belong to the whole context, so requests with other adapters wait for theirs."""

# Names and scales of adapters, by name; requests with the same ones share steps.
AdapterSet = tuple[tuple[str, float], ...]
NO_ADAPTERS: AdapterSet = ()

# A change costs a few milliseconds: rare enough for throughput, frequent enough for readers.
_SLICE_S = 0.100


class AdapterTurns:
    """Sets of adapters take turns by time; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        # Mutable state: the set in turn, when its turn ends, and the others that have work, longest waiting first.
        self.current: AdapterSet = NO_ADAPTERS
        self._until = 0.0
        self._waiting: list[AdapterSet] = []

    def choose(self, working: set[AdapterSet], now: float) -> AdapterSet:
        """Return the set that runs next, of those that have work (at least one)."""
        self._waiting = [each for each in self._waiting if each in working]
        self._waiting += sorted(each for each in working if each not in self._waiting and each != self.current)
        if self.current in working and (now < self._until or not self._waiting):
            return self.current
        if self.current in working:
            self._waiting.append(self.current)
        self.current = self._waiting.pop(0)
        self._until = now + _SLICE_S
        return self.current
