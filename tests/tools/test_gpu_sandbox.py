"""The check of an engine's sandbox: the filters of each thread, and what counts as contained."""

from pathlib import Path

import pytest

from tools.gpu.sandbox import Contained, filters_of, verdicts_of

MEANS = ["not dumpable", "landlock 7", "seccomp"]


def thread(proc: Path, number: int, filters: int) -> None:
    folder = proc / "7" / "task" / str(number)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tcard\nSeccomp:\t2\nSeccomp_filters:\t{filters}\n")


def test_every_thread_is_counted_but_for_a_thread_that_ended(tmp_path: Path) -> None:
    thread(tmp_path, 7, 2)
    thread(tmp_path, 8, 1)
    (tmp_path / "7/task/9").mkdir()
    (tmp_path / "7/task/9/status").symlink_to("ended")
    assert sorted(filters_of(7, tmp_path)) == [1, 2]


@pytest.mark.parametrize(("device", "filters"), [("cpu", {1}), ("gpu", {2})])
def test_an_engine_is_contained_if_every_thread_has_all_filters_of_its_device(device: str, filters: set[int]) -> None:
    assert [each.holds for each in verdicts_of(device, Contained(MEANS, filters, 29))] == [True, True]


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (Contained([], {0}, 29), [False, False]),
        (Contained(MEANS, {1, 2}, 29), [True, False]),
        (Contained(MEANS, {1}, 29), [True, False]),
        (Contained(MEANS, set(), 29), [True, False]),
    ],
)
def test_a_thread_without_a_filter_or_no_filter_at_all_does_not_count_as_contained(
    found: Contained, held: list[bool]
) -> None:
    assert [each.holds for each in verdicts_of("gpu", found)] == held
