"""The list of the slowest files after a run of the suite."""

from typing import Literal

import pytest

from tests.conftest import slowest_files


def report(test: str, seconds: float, when: Literal["setup", "call", "teardown"] = "call") -> pytest.TestReport:
    """Return the report of one part of a test."""
    place = (test.partition("::")[0], 1, "test")
    return pytest.TestReport(test, place, {}, "passed", None, when, duration=seconds)


def test_a_file_takes_the_time_of_all_its_tests_and_of_their_fixtures() -> None:
    reports = [report("a.py::test_one", 1), report("b.py::test_two", 2), report("a.py::test_one", 4, when="setup")]
    assert slowest_files(reports) == [("a.py", 5), ("b.py", 2)]


def test_ten_files_are_listed_at_most() -> None:
    reports = [report(f"{index}.py::test", index) for index in range(11)]
    assert [file for file, _ in slowest_files(reports)] == [f"{index}.py" for index in range(10, 0, -1)]
