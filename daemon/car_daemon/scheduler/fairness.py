"""Tokens served to each client, fading with time: who got least goes first."""

from car_daemon.scheduler.request import Client, Request

_HALF_LIFE_S = 60.0
# Less than this is forgotten, so that the table stays as small as the clients of the last minutes.
_FORGOTTEN = 0.5
# A lease counts this many answer tokens in advance, so that one client does not get all that are free at once.
_ADVANCE = 64


class Fairness:
    """Counts what clients were served; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        # Mutable state: tokens as of the time they were last counted, by client.
        self._served: dict[Client, tuple[float, float]] = {}

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

    def started(self, request: Request, now: float) -> None:
        """Count a request's prompt, and the beginning of its answer, as it gets its first lease."""
        self.charge(request.client, request.prompt_tokens + _ADVANCE, now)

    def advanced(self, request: Request, tokens: int, cached: int, now: float) -> None:
        """Count answer tokens that came on top of those in advance; prompt tokens that were cached cost nothing."""
        if (served := (tokens if request.produced > _ADVANCE else 0) - cached) != 0:
            self.charge(request.client, served, now)

    def ended(self, request: Request, now: float) -> None:
        """Take back what was counted in advance and not used."""
        self.charge(request.client, min(0, request.produced - _ADVANCE), now)
        self.forget(now)

    def forget(self, now: float) -> None:
        """Drop the clients whose tokens have faded."""
        faded = [client for client in self._served if self.served(client, now) < _FORGOTTEN]
        for client in faded:
            del self._served[client]
