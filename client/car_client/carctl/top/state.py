"""The state of `carctl top`: the order, the chosen request, and the last message."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from car_client.results import SequenceStatus, Status, WaitingStatus
from car_protocol.envelope import Id

Row = TypeVar("Row", SequenceStatus, WaitingStatus)
# Identifies a running request between statuses: model, sequence, connection and id, which is None for other users'.
Key = tuple[str, int, int, Id | None]


class Order(NamedTuple):
    """An order of rows: its name and its sort key."""

    name: str
    key: Callable[[SequenceStatus], Any]


class CancelTarget(NamedTuple):
    """A request to cancel."""

    connection: int
    id: Id


ORDERS = {
    "a": Order("age", lambda each: -each.age_ms),
    "d": Order("done", lambda each: -each.done_tokens),
    "p": Order("prompt", lambda each: -each.prompt_tokens),
    "n": Order("client", lambda each: (each.caller, each.connection)),
}


class TopState:
    """Applies keys and statuses to the state of the view."""

    def __init__(self) -> None:
        self.order = ORDERS["a"]
        self.rows: list[SequenceStatus] = []  # of the last status, sorted by app
        self.rates: dict[Key, float] = {}  # tokens/s since the status before
        self.confirming = False  # whether the next key confirms a cancellation
        self.over = False
        self.message = ""  # until the next key
        self._chosen: Key | None = None
        self._updated_at: float | None = None

    @property
    def chosen(self) -> SequenceStatus | None:
        """The chosen request; the first one if none is chosen or it has ended."""
        return next((row for row in self.rows if key_of(row) == self._chosen), self.rows[0] if self.rows else None)

    def update(self, status: Status, now: float) -> None:
        """Take over a new status."""
        before = {key_of(row): row.done_tokens for row in self.rows}
        elapsed = now - self._updated_at if self._updated_at is not None else 0.0
        self.rates = {
            key_of(row): max(0.0, row.done_tokens - before[key_of(row)]) / elapsed
            for row in status.sequences
            if elapsed and key_of(row) in before
        }
        self._sort(status.sequences)
        self._updated_at = now

    def press(self, key: str) -> CancelTarget | None:
        """Apply a key; return the request to cancel once that is confirmed."""
        self.message = ""
        if self.confirming:
            self.confirming = False
            if key != "y":
                return None
            row = next((row for row in self.rows if key_of(row) == self._chosen), None)
            if row is not None and row.id is not None:
                return CancelTarget(row.connection, row.id)
            self.message = "that request has ended"
            return None
        if key in ORDERS:
            self.order = ORDERS[key]
            self._sort(self.rows)
        elif key in _KEYS:
            _KEYS[key](self)
        return None

    def move(self, steps: int) -> None:
        """Move the choice by a number of rows."""
        if self.chosen:
            place = self.rows.index(self.chosen) + steps
            self._chosen = key_of(self.rows[max(0, min(place, len(self.rows) - 1))])

    def ask_to_cancel(self) -> None:
        """Ask for confirmation to cancel the chosen request, if this user may cancel it."""
        if self.chosen is None:
            self.message = "nothing runs"
        elif self.chosen.id is None:
            self.message = "that request is another user's"
        else:
            self._chosen = key_of(self.chosen)
            self.confirming = True

    def quit(self) -> None:
        """End the view."""
        self.over = True

    def _sort(self, rows: Iterable[SequenceStatus]) -> None:
        self.rows = [row for app in groups(sorted(rows, key=self._rank)).values() for row in app]

    def _rank(self, row: SequenceStatus) -> tuple[Any, float]:
        # Ties are ordered by age, so that rows keep their places.
        return self.order.key(row), -row.age_ms


def app_of(row: SequenceStatus | WaitingStatus) -> str:
    """Return the name of the app that sent a request."""
    return row.caller or f"connection {row.connection}"


def groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by the name of the app that sent their requests, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(app_of(row), []).append(row)
    return found


def key_of(row: SequenceStatus) -> Key:
    """Return the key of a running request."""
    return row.model, row.sequence, row.connection, row.id


_KEYS: dict[str, Callable[[TopState], None]] = {
    "q": TopState.quit,
    "end": TopState.quit,
    "c": TopState.ask_to_cancel,
    "up": lambda state: state.move(-1),
    "k": lambda state: state.move(-1),
    "down": lambda state: state.move(1),
    "j": lambda state: state.move(1),
}
