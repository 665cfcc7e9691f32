"""What `carctl top` keeps between two pictures: the order, the chosen request, and what was said last."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from car_protocol.envelope import Id
from car_protocol.status import SequenceStatus, Status

# A request by all that names it: its id is unknown where it is another user's, and sequences are used again.
Key = tuple[str, int, int, Id | UnsetType]


class Order(NamedTuple):
    """A way to sort: its name, and what it sorts by."""

    name: str
    key: Callable[[SequenceStatus], Any]


class Target(NamedTuple):
    """A request to cancel."""

    connection: int
    id: Id


ORDERS = {
    "a": Order("age", lambda each: -each.age_ms),
    "d": Order("done", lambda each: -each.done_tokens),
    "p": Order("prompt", lambda each: -each.prompt_tokens),
    "n": Order("client", lambda each: (each.client or "", each.connection)),
}


class TopState:
    """The state of the view; it draws nothing and asks nothing."""

    def __init__(self) -> None:
        # Mutable state: the order, the chosen row, the running requests as last seen with their rates, whether a
        # cancellation waits to be confirmed, whether the end was asked for, and the last message.
        self.order = ORDERS["a"]
        self.rows: list[SequenceStatus] = []
        self.rates: dict[Key, float] = {}
        self.confirming = False
        self.over = False
        self.message = ""
        self._chosen: Key | None = None
        self._seen_at: float | None = None

    @property
    def chosen(self) -> SequenceStatus | None:
        """The chosen request, the first one where none was chosen or it has ended."""
        return next((row for row in self.rows if key_of(row) == self._chosen), self.rows[0] if self.rows else None)

    def take(self, status: Status, now: float) -> None:
        """Take a status in."""
        before = {key_of(row): row.done_tokens for row in self.rows}
        elapsed = now - self._seen_at if self._seen_at is not None else 0.0
        self.rates = {
            key_of(row): max(0.0, row.done_tokens - before[key_of(row)]) / elapsed
            for row in status.sequences
            if elapsed and key_of(row) in before
        }
        self.rows = sorted(status.sequences, key=self._rank)
        self._seen_at = now

    def press(self, key: str) -> Target | None:
        """Do what a key means; returns what is to be cancelled, once that was confirmed."""
        self.message = ""
        if self.confirming:
            self.confirming = False
            return self._target() if key == "y" else None
        if key in ORDERS:
            self.order = ORDERS[key]
            self.rows.sort(key=self._rank)
        elif key in _KEYS:
            _KEYS[key](self)
        return None

    def move(self, steps: int) -> None:
        """Choose another row."""
        if self.chosen:
            place = self.rows.index(self.chosen) + steps
            self._chosen = key_of(self.rows[max(0, min(place, len(self.rows) - 1))])

    def ask(self) -> None:
        """Ask whether to cancel the chosen request, where it can be."""
        if self.chosen is None:
            self.message = "nothing runs"
        elif self.chosen.id is UNSET:
            self.message = "that request is another user's"
        else:
            self._chosen = key_of(self.chosen)
            self.confirming = True

    def quit(self) -> None:
        """Ask for the end."""
        self.over = True

    def _rank(self, row: SequenceStatus) -> tuple[Any, float]:
        # Of equals the oldest comes first, so that rows do not change places by chance.
        return self.order.key(row), -row.age_ms

    def _target(self) -> Target | None:
        row = next((row for row in self.rows if key_of(row) == self._chosen), None)
        if row is None or row.id is UNSET:
            self.message = "that request has ended"
            return None
        return Target(row.connection, row.id)


def key_of(row: SequenceStatus) -> Key:
    """Return what names a running request from one status to the next."""
    return row.model, row.sequence, row.connection, row.id


_KEYS: dict[str, Callable[[TopState], None]] = {
    "q": TopState.quit,
    "end": TopState.quit,
    "c": TopState.ask,
    "up": lambda state: state.move(-1),
    "k": lambda state: state.move(-1),
    "down": lambda state: state.move(1),
    "j": lambda state: state.move(1),
}
