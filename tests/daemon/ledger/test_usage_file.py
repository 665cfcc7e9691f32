"""The file of the ledger: reports by every dimension, its bounds, and files that cannot be used."""

import sqlite3
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from car_daemon.ledger import usage_file
from car_daemon.ledger.query import FILE_NAME, LedgerError, UsageQuery
from car_daemon.ledger.sums import RowKey, Rows
from car_daemon.ledger.usage_file import UsageFile
from car_protocol.usage import MOST_ROWS, Amounts, Dimension

TODAY = date(2026, 3, 1).toordinal()


def rows(*groups: tuple[int, str, str, str], tokens: int = 1) -> Rows:
    return {RowKey(*group): Amounts(completed=1, computed_tokens=tokens, device_s=0.25) for group in groups}


def query(*by: Dimension, since: int = TODAY - 400, identity: str | None = None) -> UsageQuery:
    return UsageQuery(by, since, TODAY, identity)


@pytest.fixture
def file(tmp_path: Path) -> UsageFile:
    return UsageFile(tmp_path / "usage")


def test_rows_are_added_to_those_of_the_same_day_identity_app_and_model(file: UsageFile) -> None:
    for _ in range(3):
        file.write(rows((TODAY, "@anna", "editor", "m"), (TODAY - 1, "1000", "", "m"), tokens=5), TODAY - 400)
    report = file.report(query("day", "person", "app", "model"))
    assert (report.since, report.until) == ("2025-01-25", "2026-03-01")
    yesterday, today = report.rows
    assert (yesterday.day, yesterday.uid, yesterday.person, yesterday.app) == ("2026-02-28", 1000, None, "")
    assert (today.day, today.uid, today.person, today.app, today.model) == (
        "2026-03-01",
        None,
        "anna",
        "editor",
        "m",
    )
    assert (today.completed, today.computed_tokens, today.device_s) == (3, 15, 0.75)
    assert (report.total.completed, report.total.computed_tokens) == (6, 30)
    assert file.spent(TODAY) == {"@anna": 15}


def test_an_identity_gets_its_own_rows_and_the_sum_of_them_alone(file: UsageFile) -> None:
    file.write(rows((TODAY, "@anna", "secret", "m"), (TODAY, "@bob", "", "m")), 0)
    report = file.report(query("app", "person", identity="@bob"))
    assert [(row.person, row.app) for row in report.rows] == [("bob", "")]
    assert report.total.completed == 1


def test_a_query_takes_the_days_from_the_first_one_on(file: UsageFile) -> None:
    file.write(rows((TODAY - 7, "1", "", "m"), (TODAY - 6, "1", "", "m")), 0)
    report = file.report(query("day", since=TODAY - 6))
    assert ([row.day for row in report.rows], report.total.completed) == (["2026-02-23"], 1)


def test_days_beyond_those_that_are_kept_are_removed(file: UsageFile) -> None:
    file.write(rows((TODAY - 400, "1", "", "m"), (TODAY - 399, "1", "", "m")), 0)
    file.write(rows((TODAY, "1", "", "m")), TODAY - 399)
    assert [row.day for row in file.report(query("day")).rows] == ["2025-01-26", "2026-03-01"]


def test_the_rows_with_most_tokens_are_reported_and_the_others_counted(file: UsageFile) -> None:
    for number in range(MOST_ROWS + 5):
        file.write(rows((TODAY, "1", f"app {number}", "m"), tokens=1 + number), 0)
    report = file.report(query("app"))
    assert (len(report.rows), report.left_out) == (MOST_ROWS, 5)
    assert {f"app {number}" for number in range(5)} & {row.app for row in report.rows} == set()
    assert report.total.completed == MOST_ROWS + 5


def test_a_full_file_gives_up_its_oldest_days_and_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    most = 1024 * 1024
    file = UsageFile(tmp_path, most)
    for day in range(TODAY - 60, TODAY + 1):
        file.write({RowKey(day, f"@{number}", "an app", "m"): Amounts(completed=1) for number in range(500)}, 0)
        assert sum(each.stat().st_size for each in tmp_path.glob(f"{FILE_NAME}*")) < 8 * most
        assert (tmp_path / FILE_NAME).stat().st_size <= most
    kept = [row.day for row in file.report(query("day")).rows]
    assert 5 < len(kept) < 60
    assert kept[-1] == "2026-03-01"
    assert all(row.completed == 500 for row in file.report(query("day")).rows)


def test_a_day_that_fills_the_file_is_refused_and_leaves_it_usable(tmp_path: Path) -> None:
    file = UsageFile(tmp_path, 64 * 1024)
    with pytest.raises(LedgerError, match="full"):
        file.write({RowKey(TODAY, f"@{number}", "an app", "m"): Amounts(completed=1) for number in range(9000)}, 0)
    file.write(rows((TODAY, "1", "", "m")), 0)
    assert file.report(query("day")).total.completed == 1


def test_a_file_whose_making_failed_in_the_middle_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = UsageFile(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(usage_file, "_VERSION", "as on a full disk")
        with pytest.raises(LedgerError):
            file.write(rows((TODAY, "1", "", "m")), 0)
    file.write(rows((TODAY, "1", "", "m")), 0)
    assert file.report(query("day")).total.completed == 1


def test_a_file_that_is_removed_in_use_is_made_again(tmp_path: Path) -> None:
    file = UsageFile(tmp_path)
    file.write(rows((TODAY, "1", "", "m")), 0)
    for path in tmp_path.glob(f"{FILE_NAME}*"):
        path.unlink()
    file.write(rows((TODAY, "2", "", "m")), 0)
    assert [row.uid for row in UsageFile(tmp_path).report(query("person")).rows] == [2]


def no_database(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def overwritten_inside(path: Path) -> None:
    """Write nothing good into all pages but the first, after a restart that left no latest writes."""
    file = UsageFile(path.parent)
    file.write(rows(*((TODAY, str(uid), "", "m") for uid in range(1000))), 0)
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


@pytest.mark.parametrize("spoil", [no_database, overwritten_inside])
def test_a_damaged_file_is_put_aside_and_a_new_one_begins(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / FILE_NAME
    spoil(path)
    spoiled = path.read_bytes()
    file = UsageFile(tmp_path)
    with pytest.raises(LedgerError):
        UsageFile(tmp_path).report(query("person"))
    assert path.read_bytes() == spoiled
    with pytest.raises(LedgerError, match=r"kept as usage\.db\.damaged"):
        file.write(rows((TODAY, "1", "", "m")), 0)
    assert path.with_name("usage.db.damaged").read_bytes() == spoiled
    file.write(rows((TODAY, "2", "", "m")), 0)
    assert [row.uid for row in UsageFile(tmp_path).report(query("person")).rows] == [2]


def test_a_damaged_file_is_put_aside_when_the_tokens_of_a_day_are_read(tmp_path: Path) -> None:
    no_database(tmp_path / FILE_NAME)
    file = UsageFile(tmp_path)
    with pytest.raises(LedgerError, match=r"not a database: it is kept as usage\.db\.damaged"):
        file.spent(TODAY)
    assert file.spent(TODAY) == {}


def test_a_file_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as other:
        other.execute("PRAGMA user_version = 9")
    for _ in range(2):
        with pytest.raises(LedgerError, match="version 9"):
            UsageFile(tmp_path).write(rows((TODAY, "1", "", "m")), 0)


def test_a_file_that_another_program_locks_is_refused_until_the_lock_is_gone(file: UsageFile, tmp_path: Path) -> None:
    file.write(rows((TODAY, "1", "", "m")), 0)
    other = sqlite3.connect(tmp_path / "usage" / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        file.write(rows((TODAY, "1", "", "m")), 0)
    other.execute("ROLLBACK")
    other.close()
    file.write(rows((TODAY, "1", "", "m")), 0)
    assert file.report(query("day")).total.completed == 2


def test_the_file_is_in_a_folder_of_this_user_alone(file: UsageFile, tmp_path: Path) -> None:
    file.write(rows((TODAY, "1", "", "m")), 0)
    assert (tmp_path / "usage").stat().st_mode & 0o077 == 0
    elsewhere = tmp_path / "linked"
    elsewhere.symlink_to(tmp_path / "usage")
    with pytest.raises(LedgerError) as caught:
        UsageFile(elsewhere).report(query("day"))
    assert str(tmp_path) not in str(caught.value)


def test_a_year_of_fifty_people_with_ten_apps_is_read_in_one_pass_and_fits_the_file(file: UsageFile) -> None:
    for first in range(TODAY - 399, TODAY + 1, 40):
        file.write(
            {
                RowKey(day, f"@person-{person}", f"application-{app}", "a-model-of-some-size"): Amounts(
                    completed=40, prompt_tokens=90_000, cached_tokens=60_000, computed_tokens=30_000, device_s=71.25
                )
                for day in range(first, first + 40)
                for person in range(50)
                for app in range(10)
            },
            0,
        )
    report = file.report(query("person", since=TODAY - 399))
    assert len(report.rows) == 50
    assert report.total.completed == 400 * 50 * 10 * 40
    connection = file._opened()
    assert usage_file._bytes(connection) < usage_file.MOST_BYTES - usage_file.MOST_BYTES // 8
    for statement, values in usage_file.statements(query("person", since=TODAY - 6)):
        plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert [step for step in plan if " usage" in step] == ["SEARCH usage USING PRIMARY KEY (day>? AND day<?)"]
