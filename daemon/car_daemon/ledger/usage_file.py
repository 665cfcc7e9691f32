"""The file of the ledger: SQLite, written in one transaction a time; every method runs in a thread."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from car_base.host.private_folder import PrivateFolder
from car_daemon.ledger.query import FILE_NAME, LedgerError, UsageQuery, date_of
from car_daemon.ledger.sums import RowKey, Rows
from car_protocol.usage import MOST_ROWS, Amounts, Dimension, UsageReport, UsageRow

# A promise: the file and that of its latest writes have at most 64 MiB. The latter is moved into the former at 4 MiB,
# and the transaction that does it may be as long again.
MOST_BYTES = 56 * 1024 * 1024
_VERSION = 1
# Another daemon of this user, or a program that reads the file, may hold a lock; the next attempt comes a second later.
_PATIENCE_S = 0.5

# The low byte of an error's code is its kind.
_PRIMARY = 0xFF
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The name of a damaged file; an older one is replaced.
_ASIDE = f"{FILE_NAME}.damaged"
# Of the names of the file, of its latest writes and of their index.
_ENDS = ("", "-wal", "-shm")

_KEYS = RowKey._fields
_AMOUNTS = Amounts.__struct_fields__
_COLUMNS = (*_KEYS, *_AMOUNTS)
_DEFAULTS = Amounts()
_TABLE = (
    "CREATE TABLE usage (day INTEGER NOT NULL, identity TEXT NOT NULL, app TEXT NOT NULL, model TEXT NOT NULL, "
    + ", ".join(
        f"{name} {'REAL' if isinstance(getattr(_DEFAULTS, name), float) else 'INTEGER'} NOT NULL" for name in _AMOUNTS
    )
    + f", PRIMARY KEY ({', '.join(_KEYS)})) WITHOUT ROWID"
)
_ADD = (
    f"INSERT INTO usage VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT DO UPDATE SET "  # noqa: S608 - of constants
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _AMOUNTS)
)
_SUMS = ", ".join(f"coalesce(sum({name}), 0)" for name in _AMOUNTS)
_TOKENS = "sum(computed_tokens + completion_tokens)"
# The oldest of several days.
_DROP_DAY = "DELETE FROM usage WHERE day = (SELECT min(day) FROM usage) AND day < (SELECT max(day) FROM usage)"
_SPENT = f"SELECT identity, {_TOKENS} FROM usage WHERE day = ? GROUP BY identity"  # noqa: S608 - of constants
_COLUMN_OF: dict[Dimension, str] = {"day": "day", "person": "identity", "app": "app", "model": "model"}


class UsageFile:
    """A file in a folder of this user alone; every method raises LedgerError, and none waits long for a lock.

    If `write` or `spent` finds the file damaged, it is put aside, and the next of these begins another file.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the connection's file

    def write(self, rows: Rows, oldest: int) -> None:
        """Add rows to the file's, and remove the days before the oldest; a full file loses more days."""
        values = [(*group, *(getattr(amounts, name) for name in _AMOUNTS)) for group, amounts in rows.items()]
        with self._failures(puts_aside=True):
            connection = self._opened()
            with connection:
                connection.executemany(_ADD, values)
                connection.execute("DELETE FROM usage WHERE day < ?", (oldest,))
            # An eighth is room for the rows of a day, so that they need not wait for the next removal.
            while _bytes(connection) > self._most_bytes - self._most_bytes // 8:
                with connection:
                    if not connection.execute(_DROP_DAY).rowcount:
                        break

    def spent(self, day: int) -> dict[str, int]:
        """Return the tokens of a day by identity."""
        with self._failures(puts_aside=True):
            return dict(self._opened().execute(_SPENT, (day,)).fetchall())

    def report(self, query: UsageQuery) -> UsageReport:
        """Return the sums of rows."""
        with self._failures():
            return _report(self._opened(), query)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        """Return the connection to the file; a file that was removed or replaced is left for the one there now."""
        if self._connection is not None and _identity_of(self._folder / FILE_NAME) != self._identity:
            self.close()
        if self._connection is None:
            with PrivateFolder(self._folder):
                connection = sqlite3.connect(self._folder / FILE_NAME, timeout=_PATIENCE_S, check_same_thread=False)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._identity = connection, _identity_of(self._folder / FILE_NAME)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 0")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {self._most_bytes // page_bytes}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with connection:
                connection.execute("BEGIN IMMEDIATE")  # a definition begins none by itself
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it has version {version}, this daemon writes {_VERSION}")

    def _put_aside(self) -> None:
        """Rename the file, and the files of its latest writes; raises OSError."""
        for end in _ENDS:
            with suppress(FileNotFoundError):
                (self._folder / f"{FILE_NAME}{end}").replace(self._folder / f"{_ASIDE}{end}")

    @contextmanager
    def _failures(self, *, puts_aside: bool = False) -> Iterator[None]:
        """Close the file after a failure, because it may be another one at the next attempt; raises LedgerError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
            # The text of an OSError has the path, which other users need not know.
            why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
            # A fault of our own has no code.
            if puts_aside and getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _DAMAGED:
                with suppress(OSError):
                    self._put_aside()
                    why += f": it is kept as {_ASIDE}, and a new one begins"
            raise LedgerError(why) from error


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


def _bytes(connection: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (pages - free) * size


def statements(query: UsageQuery) -> list[tuple[str, list[int | str]]]:
    """Return the statements of a report, with their values: of its rows, of their number, and of the sum of all."""
    where, values = "day BETWEEN ? AND ?", [query.since, query.until]
    given: list[int | str] = [*values]
    if query.identity is not None:
        where += " AND identity = ?"
        given.append(query.identity)
    # All parts of these statements are constants: no value of a client is among them.
    columns = ", ".join(_COLUMN_OF[name] for name in query.by)
    grouped = f"FROM usage WHERE {where} GROUP BY {columns}"
    rows = f"SELECT {columns}, {_SUMS} {grouped} ORDER BY {_TOKENS} DESC LIMIT ?"
    count = f"SELECT count(*) FROM (SELECT 1 {grouped})"  # noqa: S608 - as said above
    total = f"SELECT {_SUMS} FROM usage WHERE {where}"  # noqa: S608 - as said above
    return [(rows, [*given, MOST_ROWS + 1]), (count, given), (total, given)]


def _report(connection: sqlite3.Connection, query: UsageQuery) -> UsageReport:
    rows, count, total = statements(query)
    found = connection.execute(*rows).fetchall()
    left_out = connection.execute(*count).fetchone()[0] - MOST_ROWS if len(found) > MOST_ROWS else 0
    reported = [_row(query.by, values) for values in found[:MOST_ROWS]]
    reported.sort(key=lambda row: row.day or "")
    return UsageReport(
        since=date_of(query.since),
        until=date_of(query.until),
        total=_row([], connection.execute(*total).fetchone()),
        rows=reported,
        left_out=left_out,
    )


def _row(names: Sequence[Dimension], values: Sequence[Any]) -> UsageRow:
    row = UsageRow(**dict(zip(_AMOUNTS, values[len(names) :], strict=True)))
    for name, value in zip(names, values, strict=False):
        if name == "day":
            row.day = date_of(value)
        elif name != "person":
            setattr(row, name, value)
        elif value.startswith("@"):
            row.person = value[1:]
        else:
            row.uid = int(value)
    # The default itself, which is left out of the answer.
    row.device_s = round(row.device_s, 3) or _DEFAULTS.device_s
    row.waited_s = round(row.waited_s, 3) or _DEFAULTS.waited_s
    return row
