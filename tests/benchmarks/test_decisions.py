"""What the benchmark of decisions counts."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.decisions import Beside, paid
from car_client import AsyncClient
from tests.e2e.support import running


async def test_ten_questions_are_their_state_once_and_their_tails(tmp_path: Path) -> None:
    with running(tmp_path, "--capacity", "1") as daemon:
        async with AsyncClient(daemon.ready().path) as client:
            found = await paid(client, Random(1), words=100)
    assert found.state_tokens > 100
    assert found.unaccounted == 0
    assert found.ratio > 0


def test_a_decision_takes_from_others_what_they_had_without_it() -> None:
    assert Beside([1.0] * 5, tokens=50, seconds=10.0).lost_s(alone_per_s=10.0) == pytest.approx(1.0)
