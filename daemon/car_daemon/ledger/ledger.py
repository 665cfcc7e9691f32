"""The ledger over the daemon's life: sums in memory, written once a second by a thread, and reports by another."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from msgspec import structs

from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_daemon.ledger.query import FILE_NAME, LedgerError, UsageQuery, date_of
from car_daemon.ledger.sums import Rows, Sums
from car_protocol.errors import RpcError
from car_protocol.usage import DEFAULT_DAYS, NOT_KEPT, UsageParams, UsageReport, UsageRow

if TYPE_CHECKING:
    from car_daemon.ledger.usage_file import UsageFile

T = TypeVar("T")
# A promise: a daemon that is killed loses at most so much.
_PERIOD_S = 1.0
# A day lasts so many looks, a minute, before older days go: a clock may be years ahead until it is set at the start.
_SETTLED = 60
# Attempts at a file that cannot be used come a second, two, four and so on apart, a minute at most.
_MOST_PAUSE = 64


class FileThread:
    """The file, used by a thread of its own; neither is there before the first use."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._executor = ThreadPoolExecutor(1, name)
        self._file: UsageFile | None = None

    async def do(self, work: Callable[["UsageFile"], T]) -> T:
        """Return what a function of the file returns; raises LedgerError as it does."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(self._made()))

    def close(self) -> None:
        """Wait for the thread, and close the file."""
        self._executor.shutdown()
        if self._file is not None:
            self._file.close()

    def _made(self) -> "UsageFile":
        if self._file is None:
            # Imported here because most daemons keep no ledger, and need no SQLite.
            from car_daemon.ledger.usage_file import UsageFile

            self._file = UsageFile(self._folder)
        return self._file


class Ledger:
    """Kept once `keep` is called; before that it has no thread and no file.

    A file that cannot be used is one warning, until it can be used again; meanwhile rows stay in memory.
    `wall_clock` is in seconds since 1970; days are local.
    """

    def __init__(self, folder: Path, wall_clock: Callable[[], float]) -> None:
        self.kept = False
        self._wall_clock = wall_clock
        self.sums = Sums(self._today)
        self._days = 1
        self._looks_at_day = 0
        self._path = folder / FILE_NAME
        self._writer, self._reader = FileThread(folder, "usage"), FileThread(folder, "usage reports")
        self._looks = Periodic(_PERIOD_S, self._look)
        self._writing: asyncio.Task[None] | None = None
        self._recalled = False  # whether it is known what an earlier daemon noted today
        self._fault: str | None = None
        self._pause, self._skipped = 1, 0  # seconds, after a failure
        # So that the reports of one identity take turns among themselves.
        self._turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Ledger kept={self.kept} {self.sums!r} fault={self._fault}>"

    @property
    def _today(self) -> int:
        return date.fromtimestamp(self._wall_clock()).toordinal()

    def day_ends(self) -> float:
        """Return the end of today, in seconds since 1970."""
        tomorrow = date.fromordinal(self.sums.day) + timedelta(days=1)
        return datetime.combine(tomorrow, time.min).timestamp()

    def keep(self, days: int, *, by_person: bool, kept: bool) -> None:
        """Keep the ledger from now on, for so many days, if `kept` or kept already; in the running event loop.

        Once begun it lasts, because requests of people outlive the people.
        """
        self._days = days
        self.sums.by_person = by_person
        if kept and not self.kept:
            self.kept = True
            self.sums.turn(self._today)
            self._looks.start()
            self._writing = asyncio.create_task(self._write(), name="usage")

    async def close(self) -> None:
        """Write what is left, and close the file."""
        self._looks.stop()
        await self._written(try_anyway=True)
        self._writer.close()
        self._reader.close()

    async def report(self, params: UsageParams, identity: str | None) -> UsageReport:
        """Return the rows of an identity, of all for None; all until now are in it. Raises RpcError for a date."""
        until = self._today if params.until is None else _day("until", params.until)
        since = max(1, until - DEFAULT_DAYS + 1) if params.since is None else _day("since", params.since)
        if params.until is None and since == until + 1:
            since = until  # it is today for a client whose time zone is ahead of the daemon's
        if since > until:
            raise RpcError("invalid_params", param="since", why="give a day before `until`, which is today if absent")
        query = UsageQuery(list(dict.fromkeys(params.by)), since, until, identity)
        lock = self._turns.setdefault(identity, asyncio.Lock())
        async with lock:
            if self.kept:
                await self._written()
            why = self._fault if self.kept else NOT_KEPT
            found = None
            try:
                if self._exists():
                    found = await self._reader.do(lambda file: file.report(query))
            except LedgerError as error:
                why = f"the ledger cannot be read: {error}"
        if found is None:
            found = UsageReport(since=date_of(query.since), until=date_of(until), total=UsageRow())
        return found if why is None else structs.replace(found, why=why)

    def _look(self) -> None:
        """Write the sums of the last second, once a file that failed had its pause."""
        self._skipped += 1
        self._looks_at_day += 1
        idle = self._writing is None or self._writing.done()
        if idle and not (self.sums.empty and self._recalled) and self._skipped >= self._pause:
            self._writing = asyncio.create_task(self._write(), name="usage")
        if self.sums.turn(self._today):
            self._looks_at_day = 0
            # The day may have been before: the clock was wrong, and is set.
            self._recalled = False

    async def _written(self, *, try_anyway: bool = False) -> None:
        """Return once all until now is written, or could not be; after a failure it is not tried before its time."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        if not self.sums.empty and (self._fault is None or try_anyway):
            self._writing = asyncio.create_task(self._write(), name="usage")
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        rows, oldest = self.sums.take(), 0
        if self._looks_at_day >= _SETTLED:
            oldest = self.sums.day - self._days + 1
        self._skipped = 0
        try:
            # Before the first rows of this daemon are in the file.
            if not self._recalled:
                await self._recall(self.sums.day)
            if rows:
                await self._writer.do(lambda file: file.write(rows, oldest))
        except LedgerError as error:
            self._failed(rows, str(error))
        else:
            self._fault, self._pause = None, 1

    async def _recall(self, day: int) -> None:
        """Count the tokens that an earlier daemon noted today; raises LedgerError."""
        if self._exists():
            found = await self._writer.do(lambda file: file.spent(day))
            for identity, tokens in found.items() if day == self.sums.day else ():
                self.sums.spend(identity, tokens)
        self._recalled = True

    def _exists(self) -> bool:
        """Return whether there is a file; raises LedgerError for a folder that may not be searched."""
        try:
            return self._path.exists()
        except OSError as error:
            raise LedgerError(os.strerror(error.errno or 0)) from error

    def _failed(self, rows: Rows, why: str) -> None:
        self.sums.give_back(rows)
        if self._fault is None:
            log.warning("usage.not_written", why=why)
        self._fault = f"the ledger cannot be written: {why}"
        self._pause = min(_MOST_PAUSE, 2 * self._pause)


def _day(name: str, text: str) -> int:
    """Return the ordinal of a date; raises RpcError with the name of its parameter."""
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        raise RpcError("invalid_params", param=name, why="give a day such as 2026-01-31") from None
