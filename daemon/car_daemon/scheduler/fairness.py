"""Tokens served to each client, fading with time: who got least goes first."""

from car_daemon.scheduler.request import Client

_HALF_LIFE_S = 60.0
# Less than this is forgotten, so that the table stays as small as the clients of the last minutes.
_FORGOTTEN = 0.5


class Fairness:
    """Counts what clients were served; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        # Mutable state: tokens as of the time they were last counted, by client.
        self._served: dict[Client, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._served)

    def served(self, client: Client, now: float) -> float:
        """Return a client's tokens, faded to now."""
        tokens, at = self._served.get(client, (0.0, now))
        faded: float = tokens * 0.5 ** ((now - at) / _HALF_LIFE_S)
        return faded

    def charge(self, client: Client, tokens: float, now: float) -> None:
        """Count tokens for a client; a negative figure takes back what was counted in advance."""
        total = self.served(client, now) + tokens
        if total < _FORGOTTEN:
            self._served.pop(client, None)
        else:
            self._served[client] = (total, now)

    def forget(self, now: float) -> None:
        """Drop the clients whose tokens have faded."""
        faded = [client for client in self._served if self.served(client, now) < _FORGOTTEN]
        for client in faded:
            del self._served[client]
