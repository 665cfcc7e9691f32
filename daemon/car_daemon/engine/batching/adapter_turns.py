"""Turns of adapter sets: adapters apply to the whole context, so one step serves requests with one set."""

from car_daemon.ipc.types import NO_ADAPTERS, AdapterSet

# A change costs a few milliseconds: rare enough for throughput, frequent enough for readers.
_SLICE_S = 0.100


class AdapterTurns:
    """Adapter sets take turns by time; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        self.current: AdapterSet = NO_ADAPTERS
        self._until = 0.0  # End of the current turn.
        self._waiting: list[AdapterSet] = []  # Other sets with work, longest waiting first.

    def choose(self, working: set[AdapterSet], now: float) -> AdapterSet:
        """Return the set for the next step, one of those with work; the current one if there is no work."""
        if working == {self.current}:
            self._waiting = []
        elif working:
            self._waiting = [each for each in self._waiting if each in working]
            self._waiting += sorted(working.difference(self._waiting, [self.current]))
            if self.current not in working or now >= self._until:
                if self.current in working:
                    self._waiting.append(self.current)
                self.current = self._waiting.pop(0)
                self._until = now + _SLICE_S
        return self.current
