"""What the benchmark of decisions counts."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from benchmarks.decisions import Beside, Chunks, paid
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
    assert Beside([1.0] * 5, chunks=50, seconds=10.0).lost_s(alone_s=5.0) == pytest.approx(1.0)


async def test_the_streams_alone_are_awaited_until_they_have_as_many_chunks() -> None:
    chunks = Chunks()
    chunks.add()
    await chunks.reach(1)
    reached = asyncio.ensure_future(chunks.reach(3))
    await asyncio.sleep(0)
    chunks.add()
    await asyncio.sleep(0)
    assert not reached.done()
    chunks.add()
    await reached
