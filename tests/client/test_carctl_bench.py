"""`carctl bench`: its rounds, and its figures."""

import msgspec
import pytest

from car_client.carctl.bench import line
from car_client.carctl.bench_rounds import Round, Timed, doubling, summary
from tests.client.command import carctl
from tests.client.fake_daemon import FakeDaemon


@pytest.mark.parametrize(
    ("capacity", "rounds"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (9, [1, 2, 4, 8, 9])]
)
def test_rounds_double_up_to_the_capacity(capacity: int, rounds: list[int]) -> None:
    assert doubling(capacity) == rounds


def test_the_figures_of_a_round_are_medians_with_the_slowest_beside_them() -> None:
    answers = [Timed(10.0, [10.1, 10.2, 10.4], 4), Timed(10.0, [10.3, 10.4, 10.5], 10)]
    found = summary(2, answers, 0.5)
    assert (found.at_once, found.tokens_per_s) == (2, 28.0)
    assert [found.each_tokens_per_s, found.first_token_ms, found.first_token_slowest_ms] == pytest.approx(
        [15, 200, 300]
    )
    assert [found.between_tokens_ms, found.between_tokens_slowest_ms] == pytest.approx([100, 200])


def test_an_answer_of_one_piece_has_nothing_between() -> None:
    assert summary(1, [Timed(10.0, [10.5], 1)], 0.5).between_tokens_ms == 0


def test_a_round_is_a_line_below_the_heading() -> None:
    shown = line(Round(16, 1234.5, 77.2, 12.3, 1500.0, 8.0, 99.0))
    assert shown == "16           1,234    77.2         12 ms     1.5 s           8.0 ms     99 ms"
    assert len(shown) <= 80


def test_rounds_go_up_to_the_declared_capacity(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "bench", "--json", "--max-tokens", "5", "--model", "guide")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [msgspec.json.decode(each)["at_once"] for each in done.stdout.splitlines()] == [1, 2, 4]
    asked = [msgspec.json.decode(call.params) for call in daemon.calls if call.method == "infer_stream"]
    assert len({each["prompt"] for each in asked}) == len(asked) == 2 * (1 + 2 + 4)
    assert {(each["max_tokens"], each["ignore_eos"], each["model"]) for each in asked} == {(5, True, "guide")}


def test_the_rounds_can_be_named(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "bench", "--at-once", "3", "--answers", "1")
    heading, figures = done.stdout.decode().splitlines()
    assert heading.split()[:3] == ["at", "once", "tokens/s"]
    assert figures.split()[0] == "3"


@pytest.mark.parametrize("wrong", ["0", "x", "1,,2", "-1"])
def test_rounds_of_nothing_are_wrong_usage(wrong: str) -> None:
    assert carctl("bench", f"--at-once={wrong}").returncode == 2
