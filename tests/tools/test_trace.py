"""One answer costs the daemon few calls, and few jumps between files; the page that shows the way is true."""

import re

import pytest

from tools.trace.measured import Measured, measure
from tools.trace.page import PAGE


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure()


@pytest.mark.parametrize(("name", "calls", "changes"), [("stream", 305, 150), ("capacity", 30, 15), ("step", 72, 50)])
def test_an_answer_takes_few_calls_and_changes_of_file(measured: Measured, name: str, calls: int, changes: int) -> None:
    profile = getattr(measured, name)
    assert 0 < profile.calls <= calls
    assert 0 < profile.changes <= changes


def test_the_page_shows_the_files_of_a_token_in_order(measured: Measured) -> None:
    shown = re.findall(r"^\| \d+ \| `([\w/]+\.py)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [visit.file for visit in measured.token.visits], "`make trace` writes the page again"
