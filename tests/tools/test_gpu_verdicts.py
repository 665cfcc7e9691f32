"""Verdicts of the GPU suite: figures at, above and below what is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_protocol.answer import Logprob, TokenChoice
from car_protocol.models import DeviceStatus
from tools.gpu.verdicts import GAP, Speed, Verdict, agreement, freed, memory, own_part, passed, speed, table, widest_gap

MIB = 1 << 20


def place(*choices: tuple[int, float]) -> Logprob:
    """Return a place of an answer, of which the first choice was taken."""
    top = [TokenChoice(token, "", logprob) for token, logprob in choices]
    return Logprob(top[0].token, "", top[0].logprob, top)


EXPECTED = [place((1, -0.1), (2, -3.0)), place((3, -1.0), (4, -1.2)), place((5, -0.1), (6, -4.0))]


def test_equal_answers_have_no_gap() -> None:
    assert widest_gap(EXPECTED, [1, 3, 5]) == 0


def test_answers_are_compared_up_to_where_they_part() -> None:
    assert widest_gap(EXPECTED, [1, 4, 9]) == pytest.approx(0.2)
    assert widest_gap(EXPECTED, [2, 4, 9]) == pytest.approx(2.9)


def test_a_token_that_the_reference_does_not_list_is_as_far_as_can_be() -> None:
    assert widest_gap(EXPECTED, [1, 8]) > 900


def test_nearly_equal_tokens_may_differ_and_others_may_not() -> None:
    assert agreement("a", [0.0, GAP]).holds
    assert not agreement("a", [0.0, GAP + 0.01]).holds
    assert "1 of 2 equal" in agreement("a", [0.0, GAP]).found


def device(planned: int, taken: int) -> DeviceStatus:
    return DeviceStatus(
        name="CUDA0", layers=9, planned_bytes=planned, taken_bytes=taken, free_bytes=0, total_bytes=80 << 30
    )


@pytest.mark.parametrize(("taken", "holds"), [(1000, True), (1049, True), (951, True), (1051, False), (949, False)])
def test_a_device_may_hold_a_twentieth_more_or_less_than_was_planned(taken: int, holds: bool) -> None:
    (verdict,) = memory([device(1000 * MIB, taken * MIB)])
    assert verdict.holds is holds
    assert f"planned 1000 MiB, taken {taken} MiB" in verdict.found


def test_without_devices_memory_is_not_judged() -> None:
    assert [verdict.holds for verdict in memory([])] == [None]


def test_memory_counts_as_freed_within_a_fiftieth_of_the_device() -> None:
    assert freed("a", before=(900, 1000), after=(880, 1000)).holds
    assert freed("a", before=(900, 1000), after=(879, 1000)).holds is False
    assert freed("a", before=(900, 1000), after=(950, 1000)).holds
    assert freed("a", before=None, after=None).holds is None


def found(streams: int, ratio: float, ttft: float | None) -> list[bool | None]:
    return [each.holds for each in speed(Speed("a", streams, 100.0 * ratio, ratio, ttft, 100.0, 10.0))]


def test_one_stream_may_be_a_twentieth_slower_and_more_may_not() -> None:
    assert found(1, 0.95, 10.0) == [True, True]
    assert found(1, 0.94, 10.1) == [False, False]
    assert found(8, 0.99, 10.0) == [False, True]
    assert found(32, 1.0, 10.0) == [True, True]


def test_a_time_that_no_request_had_is_not_judged() -> None:
    assert found(8, 1.0, None) == [True, None]


def test_the_own_part_of_a_step_leaves_out_llama_cpp() -> None:
    before = {"plan": 1.0, "decode": 5.0, "sample": 1.0}
    after = {"plan": 1.001, "decode": 9.0, "sample": 3.0, "send": 0.003}
    verdict = own_part("a", before, after, tokens=80, streams=8)
    assert verdict.found == "400 us (send 300, plan 100)"
    assert verdict.holds is None


def test_the_table_has_one_line_a_verdict() -> None:
    verdicts = [Verdict("a", True, "x"), Verdict("b", False, "y"), Verdict("c", None, "z")]
    assert table(verdicts).splitlines()[2:] == ["| a | yes | x |", "| b | NO | y |", "| c | - | z |"]


@given(st.lists(st.sampled_from([True, False, None])))
def test_the_suite_passes_unless_a_check_fails(holds: list[bool | None]) -> None:
    assert passed([Verdict("a", each, "") for each in holds]) is (False not in holds)
