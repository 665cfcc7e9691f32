"""The ledger over the daemon's life: when it writes, what a file that cannot be used costs, and who keeps none."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest

from car_daemon.ledger.ledger import Ledger
from car_daemon.ledger.query import FILE_NAME
from car_protocol.errors import RpcError
from car_protocol.usage import NOT_KEPT, UsageParams
from tests.daemon.captured_log import capture_logs
from tests.pace import HANG_S, SetClock

NOON = datetime(2026, 3, 1, 12).timestamp()
DAY_S = 24 * 3600


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[Callable[[], Ledger]]:
    """Ledgers of one folder, on one clock; each is closed."""
    made: list[Ledger] = []

    def make(clock: Callable[[], float] | None = None) -> Ledger:
        made.append(Ledger(tmp_path / "usage", clock or SetClock(NOON)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def keep(ledger: Ledger, *, kept: bool = True) -> Ledger:
    ledger.keep(400, by_person=False, kept=kept)
    return ledger


def count(ledger: Ledger, tokens: int, identity: str = "@anna") -> None:
    ledger.sums.row(identity, "", "m").computed_tokens += tokens
    ledger.sums.spend(identity, tokens)


async def look(ledger: Ledger) -> None:
    """Do what a second does, to its end, once what the second before did is done."""
    if ledger._writing is not None:
        await asyncio.wait([ledger._writing], timeout=HANG_S)
    ledger._look()
    if ledger._writing is not None:
        await asyncio.wait([ledger._writing], timeout=HANG_S)


async def total(ledger: Ledger, **params: object) -> int:
    report = await ledger.report(UsageParams(**params), None)  # type: ignore[arg-type]  # of many types
    return report.total.computed_tokens


async def test_a_second_writes_all_of_it_and_a_ledger_that_is_killed_loses_what_came_after(
    ledgers: Callable[[], Ledger],
) -> None:
    killed = keep(ledgers())
    count(killed, 5)
    await look(killed)
    count(killed, 7)
    killed.sums.take()  # as an end without a word does
    assert await total(keep(ledgers())) == 5


async def test_a_report_has_all_until_now(ledgers: Callable[[], Ledger]) -> None:
    ledger = keep(ledgers())
    count(ledger, 5)
    assert await total(ledger) == 5
    count(ledger, 6)
    assert await total(ledger) == 11


async def test_a_file_that_cannot_be_used_is_one_warning_and_loses_nothing(
    ledgers: Callable[[], Ledger], tmp_path: Path
) -> None:
    (tmp_path / "usage").write_text("in the way")
    ledger = keep(ledgers())
    with capture_logs() as events:
        for _ in range(200):
            count(ledger, 1)
            await look(ledger)
        report = await ledger.report(UsageParams(), None)
        assert report.why is not None
        assert "cannot be written" in report.why
        (tmp_path / "usage").unlink()
        for _ in range(64):
            await look(ledger)
        assert await total(ledger) == 200
    assert [event["event"] for event in events] == ["usage.not_written"]
    assert (await ledger.report(UsageParams(), None)).why is None


async def test_attempts_at_a_file_that_cannot_be_used_become_rare(
    ledgers: Callable[[], Ledger], tmp_path: Path
) -> None:
    (tmp_path / "usage").write_text("in the way")
    ledger, attempts = keep(ledgers()), 0
    for _ in range(256):
        count(ledger, 1)
        before = ledger._writing
        await look(ledger)
        attempts += ledger._writing is not before
    assert attempts < 12


async def test_without_people_there_is_no_file_and_no_thread(ledgers: Callable[[], Ledger], tmp_path: Path) -> None:
    before = threading.active_count()
    ledger = keep(ledgers(), kept=False)
    report = await ledger.report(UsageParams(), None)
    assert (report.rows, report.why) == ([], NOT_KEPT)
    await ledger.close()
    assert threading.active_count() == before
    assert not (tmp_path / "usage").exists()


async def test_a_daemon_that_starts_again_knows_the_tokens_of_the_day(ledgers: Callable[..., Ledger]) -> None:
    clock = SetClock(NOON)
    first = keep(ledgers(clock))
    count(first, 9)
    await first.close()
    second = keep(ledgers(clock))
    await total(second)
    count(second, 1)
    assert second.sums.spent("@anna") == 10
    assert second.day_ends() == NOON + DAY_S / 2
    clock.now += DAY_S
    await look(second)
    assert second.sums.spent("@anna") == 0
    assert await total(second, since="2026-03-02") == 0
    assert await total(second) == 10


async def test_a_clock_that_is_set_back_gives_nobody_the_tokens_of_the_day_again(
    ledgers: Callable[..., Ledger],
) -> None:
    clock = SetClock(NOON)
    ledger = keep(ledgers(clock))
    count(ledger, 500)
    await look(ledger)
    for days in (2, -2, -3, 3):
        clock.now += days * DAY_S
        await look(ledger)
        await look(ledger)
        assert ledger.sums.spent("@anna") == (500 if days in (-2, 3) else 0)


async def test_a_clock_that_is_years_ahead_until_it_is_set_removes_no_day(ledgers: Callable[..., Ledger]) -> None:
    clock = SetClock(NOON)
    ledger = keep(ledgers(clock))
    count(ledger, 5)
    await look(ledger)
    clock.now += 500 * DAY_S
    for _ in range(5):
        count(ledger, 1)
        await look(ledger)
    clock.now -= 500 * DAY_S
    assert await total(ledger) == 6  # the first of the five was counted before the ledger saw the clock change
    clock.now += 500 * DAY_S
    for _ in range(70):
        await look(ledger)
    count(ledger, 1)
    await look(ledger)
    clock.now -= 500 * DAY_S
    await look(ledger)
    assert await total(ledger) == 0


async def test_a_folder_that_may_not_be_searched_is_one_warning_and_loses_nothing(tmp_path: Path) -> None:
    # A name that is too long fails like a folder that may not be searched, also for root.
    ledger = keep(Ledger(tmp_path / ("x" * 300), SetClock(NOON)))
    with capture_logs() as events:
        count(ledger, 7)
        await look(ledger)
        report = await ledger.report(UsageParams(), None)
        assert report.why is not None
        assert "cannot be read" in report.why
        await ledger.close()
    assert [event["event"] for event in events] == ["usage.not_written"]
    assert sum(each.computed_tokens for each in ledger.sums.take().values()) == 7


async def test_a_file_that_is_locked_at_the_start_gives_nobody_the_tokens_of_the_day_again(
    ledgers: Callable[..., Ledger], tmp_path: Path
) -> None:
    clock = SetClock(NOON)
    first = keep(ledgers(clock))
    count(first, 9)
    await first.close()
    file = tmp_path / "usage" / FILE_NAME
    readable = file.read_bytes()
    file.write_bytes(b"not a ledger" * 99)
    second = keep(ledgers(clock))
    count(second, 1)
    await look(second)
    assert second.sums.spent("@anna") == 1
    file.write_bytes(readable)
    for _ in range(4):
        await look(second)
    assert second.sums.spent("@anna") == 10
    assert await total(second) == 10


async def test_what_ends_after_the_last_person_was_removed_is_written(ledgers: Callable[[], Ledger]) -> None:
    ledger = keep(ledgers())
    count(ledger, 3)
    keep(ledger, kept=False)
    count(ledger, 4)
    assert await total(ledger) == 7


async def test_a_first_day_behind_the_last_is_refused(ledgers: Callable[[], Ledger]) -> None:
    with pytest.raises(RpcError) as refused:
        await ledgers().report(UsageParams(since="2026-01-02", until="2026-01-01"), None)
    assert refused.value.data["param"] == "since"


async def test_today_of_a_client_ahead_of_the_daemons_time_zone_is_today(ledgers: Callable[..., Ledger]) -> None:
    ledger = keep(ledgers())
    count(ledger, 9)
    assert await total(ledger, since="2026-03-02") == 9
    with pytest.raises(RpcError):
        await total(ledger, since="2026-03-03")
    await ledger.close()


@pytest.mark.parametrize("name", ["since", "until"])
async def test_a_day_that_is_none_is_refused_by_its_name(
    ledgers: Callable[[], Ledger], tmp_path: Path, name: str
) -> None:
    with pytest.raises(RpcError) as refused:
        await ledgers().report(UsageParams(**{name: "2026-02-31"}), None)  # type: ignore[arg-type]  # a text
    assert refused.value.data["param"] == name
    assert not (tmp_path / "usage" / FILE_NAME).exists()
