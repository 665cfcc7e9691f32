"""The door's own figures, as Prometheus reads them."""

import time
from collections import Counter

HELP = {
    "card_http_requests_total": ("counter", "answered requests by endpoint and status"),
    "card_http_in_flight": ("gauge", "requests that are not answered yet"),
    "card_http_disconnects_total": ("counter", "requests whose client left before the answer"),
    "card_http_daemon_calls": ("gauge", "calls to the daemon in flight"),
}


class DoorMetrics:
    """Counters of the door; endpoints are its routes, never text that a client chose."""

    def __init__(self) -> None:
        self.started = int(time.time())  # seconds since the epoch
        self._answered: Counter[tuple[str, int]] = Counter()
        self.in_flight = 0
        self.disconnects = 0

    def answered(self, endpoint: str, status: int) -> None:
        """Count an answer."""
        self._answered[endpoint, status] += 1

    def text(self, daemon_calls: int) -> str:
        """Return the figures."""
        lines: dict[str, list[str]] = {
            "card_http_requests_total": [
                f'{{endpoint="{endpoint}",status="{status}"}} {count}'
                for (endpoint, status), count in sorted(self._answered.items())
            ],
            "card_http_in_flight": [f" {self.in_flight}"],
            "card_http_disconnects_total": [f" {self.disconnects}"],
            "card_http_daemon_calls": [f" {daemon_calls}"],
        }
        return "".join(_family(name, values) for name, values in lines.items())


def _family(name: str, values: list[str]) -> str:
    kind, text = HELP[name]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n" + "".join(f"{name}{value}\n" for value in values)
