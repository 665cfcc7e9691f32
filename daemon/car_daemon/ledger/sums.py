"""Sums of what requests took, by day, identity, app and model, until they are written; pure."""

from collections import Counter
from typing import NamedTuple

from car_protocol.usage import Amounts

# Apps of an identity with rows of their own, a day: several times as many as a person uses. Clients choose their
# labels, and a new label with every request would fill the ledger.
MOST_APPS = 100
# The app of all requests beyond them.
OTHER_APPS = "..."
# Rows in memory while the file cannot be written: as many as the file has room for, a tenth of its bytes each.
MOST_ROWS = 65_536
# Series of metrics. Each identity adds at most MOST_APPS series and one for its other apps: a tenth of all.
MOST_SERIES = 10 * MOST_APPS

_NAMES = Amounts.__struct_fields__


class RowKey(NamedTuple):
    """The place of a row: the ordinal of its day, the name of its identity, its app, its model."""

    day: int
    identity: str
    app: str
    model: str


Rows = dict[RowKey, Amounts]


def add(to: Amounts, amounts: Amounts) -> None:
    """Add amounts to others."""
    for name in _NAMES:
        setattr(to, name, getattr(to, name) + getattr(amounts, name))


class Sums:
    """Amounts since they were taken last, and the tokens of each identity since the day began."""

    def __init__(self, day: int, *, by_person: bool = False) -> None:
        self.day = day
        self.by_person = by_person  # metrics tell identities apart
        self.series: dict[tuple[str, str], Amounts] = {}  # since the start, by app and identity, which may be empty
        self._opened: Counter[str] = Counter()  # series, by the identity that was the first
        self._new: Rows = {}
        self._unwritten: Rows = {}  # taken once, and given back
        self._apps: dict[str, tuple[str, ...]] = {}  # of the day, by identity
        self._tokens: Counter[str] = Counter()  # of the day, by identity

    def __repr__(self) -> str:
        return f"<Sums {len(self._new)} new rows, {len(self._unwritten)} unwritten>"

    def turn(self, day: int) -> bool:
        """Begin another day; return False if it is not another."""
        if day == self.day:
            return False
        self.day = day
        self._apps.clear()
        self._tokens.clear()
        return True

    def row(self, identity: str, app: str, model: str) -> Amounts:
        """Return the amounts of today to add to."""
        key = RowKey(self.day, identity, app, model)
        found = self._new.get(key)
        if found is None:
            apps = self._apps.get(identity, ())
            if app not in apps and app != OTHER_APPS:
                if len(apps) >= MOST_APPS:
                    return self.row(identity, OTHER_APPS, model)
                self._apps[identity] = (*apps, app)
            found = self._new[key] = Amounts()
        return found

    def spend(self, identity: str, tokens: int) -> None:
        """Count tokens of today."""
        self._tokens[identity] += tokens

    def spent(self, identity: str) -> int:
        """Return the tokens of today, computed and sampled."""
        return self._tokens[identity]

    def take(self) -> Rows:
        """Return the rows to write, which are the writer's until it gives them back."""
        rows, new = self._unwritten, self._new
        self._new, self._unwritten = {}, {}
        for key, amounts in new.items():
            add(self._of_series(key), amounts)
            if key in rows:
                add(rows[key], amounts)
            else:
                rows[key] = amounts
        return rows

    def give_back(self, rows: Rows) -> None:
        """Keep rows that could not be written; beyond the bound the rows of the oldest days go."""
        newest = sorted(rows, key=lambda key: key.day, reverse=True)[:MOST_ROWS]
        self._unwritten = {key: rows[key] for key in newest}

    @property
    def empty(self) -> bool:
        """Whether nothing is to be written."""
        return not (self._new or self._unwritten)

    def _of_series(self, row: RowKey) -> Amounts:
        key = row.app, row.identity if self.by_person else ""
        if key not in self.series and self._opened[row.identity] >= MOST_APPS:
            key = OTHER_APPS, key[1]
        if key not in self.series and len(self.series) >= MOST_SERIES:
            key = OTHER_APPS, ""
        if key not in self.series:
            self._opened[row.identity] += 1
            self.series[key] = Amounts()
        return self.series[key]
