"""`carctl usage`: a table, JSON and CSV of what the daemon's ledger has."""

import csv
import io
from datetime import date, timedelta
from typing import Any

import pytest

from car_protocol.usage import NOT_KEPT
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon

REPORT: dict[str, Any] = {
    "since": "2026-01-01",
    "until": "2026-01-31",
    "total": {"completed": 4, "prompt_tokens": 1200, "completion_tokens": 80, "device_s": 61.5},
    "rows": [
        {"person": "anna", "app": "=HYPERLINK()", "completed": 3, "prompt_tokens": 1000, "completion_tokens": 80},
        {"uid": 1000, "app": "", "completed": 1, "prompt_tokens": 200},
    ],
}


@pytest.fixture
def reporting(daemon: FakeDaemon) -> FakeDaemon:
    daemon.answers["daemon/usage"] = REPORT
    return daemon


def usage(daemon: FakeDaemon, *arguments: str) -> tuple[int, str, str]:
    done = carctl("--socket", str(daemon.path), "usage", *arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_table_has_people_users_and_the_total(reporting: FakeDaemon) -> None:
    code, shown, error = usage(reporting, "--by", "person", "--by", "app", "--since", "2026-01-01")
    assert (code, error) == (0, "")
    assert reporting.params("daemon/usage") == {"by": ["person", "app"], "since": "2026-01-01"}
    assert usage(reporting, "--by", "person", "--by", "app", "--by", "person", "--since", "2026-01-01")[1] == shown
    headings, anna, user, total, days = shown.splitlines()
    assert headings.split()[:4] == ["person", "app", "requests", "failed"]
    assert anna.split()[:5] == ["anna", "=HYPERLINK()", "3", "0", "1,000"]
    assert user.split()[:4] == ["uid", "1000", "-", "1"]
    assert total.split()[:4] == ["total", "4", "0", "1,200"]
    assert days == "2026-01-01 to 2026-01-31"


def test_csv_has_every_amount_and_no_label_becomes_a_formula(reporting: FakeDaemon) -> None:
    _, shown, _ = usage(reporting, "--by", "person", "--by", "app", "--csv")
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert [(row["person"], row["app"], row["completed"], row["cached_tokens"]) for row in rows] == [
        ("anna", "'=HYPERLINK()", "3", "0"),
        ("uid 1000", "-", "1", "0"),
    ]


@pytest.mark.parametrize("form", ["--csv", "--by=app", "--json"])
def test_a_label_controls_no_terminal(reporting: FakeDaemon, form: str) -> None:
    reporting.answers["daemon/usage"] = {**REPORT, "rows": [{"uid": 1, "app": "\x1b]0;owned\x07\x9b\u202eabc"}]}
    _, shown, _ = usage(reporting, "--by", "app", form)
    assert "owned" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_number_of_days_ends_today(reporting: FakeDaemon) -> None:
    before = date.today()
    usage(reporting, "--since", "7d", "--json")
    assert reporting.params("daemon/usage")["since"] in [
        (day - timedelta(days=6)).isoformat() for day in (before, date.today())
    ]
    assert usage(reporting, "--since", "soon")[0] == 2
    assert usage(reporting, "--since", "0d")[0] == 2


def test_the_reason_why_rows_are_missing_goes_to_standard_error(reporting: FakeDaemon) -> None:
    reporting.answers["daemon/usage"] = {**REPORT, "rows": [], "why": NOT_KEPT}
    code, shown, error = usage(reporting)
    assert (code, error) == (0, f"carctl: {NOT_KEPT}\n")
    assert "anna" not in shown


def test_usage_that_cannot_be_read_is_no_empty_usage_for_a_script(reporting: FakeDaemon) -> None:
    reporting.answers["daemon/usage"] = {**REPORT, "rows": [], "why": "the ledger cannot be read: a folder"}
    for form in ("--csv", "--json", "--by=day"):
        code, shown, error = usage(reporting, form)
        assert (code, bool(shown), error) == (1, True, "carctl: the ledger cannot be read: a folder\n")


def test_csv_that_is_cut_is_an_error_that_says_how_to_get_the_rest(reporting: FakeDaemon) -> None:
    reporting.answers["daemon/usage"] = {**REPORT, "left_out": 522}
    code, shown, error = usage(reporting, "--csv", "--since", "2026-01-01", "--until", "2026-01-31")
    assert (code, len(shown.splitlines())) == (1, 3)
    assert error == "carctl: 522 rows are left out: ask for fewer days by --since and --until\n"
    assert reporting.params("daemon/usage") == {"by": ["person"], "since": "2026-01-01", "until": "2026-01-31"}
