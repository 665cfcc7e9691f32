"""Frames of an engine that means harm: it is ended with a clear reason, and others are served meanwhile."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct, structs

from car_base.ipc.codec import encode_frame
from car_base.ipc.frames import Extra, Heartbeat, Load, LoadFailed, Loading, RequestUpdate, StepDone, Warned
from car_daemon.engines.link import EngineLink
from car_daemon.models.replica import Replica
from car_protocol.answer import Logprob, TokenChoice
from tests.daemon.captured_log import capture_logs
from tests.daemon.engines.test_supervisor import READY, World, supervised
from tests.pace import SetClock

LIKELY = Logprob(1, "a", -1.0, [TokenChoice(1, "a", -1.0)] * 21)


async def linked(receive: Callable[[Any], None], **options: Any) -> tuple[EngineLink, socket.socket]:
    """Return a link that is connected, and the engine's end of its socket."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: EngineLink(receive, **options), sock=ours)
    return link, theirs


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (encode_frame(Heartbeat(1, 1.0, {"decode_steps": float("nan")})), "cannot be decoded: Expected `float` >= 0.0"),
        (
            encode_frame(Heartbeat(1, 1.0, {f"c{each}": 1.0 for each in range(9000)})),
            "without text or tokens announces",
        ),
        (
            encode_frame(structs.replace(READY, sequences=2**31)),
            "cannot be decoded: Expected `int` <= 256 - at `$.sequences`",
        ),
        (
            encode_frame(StepDone(1, [RequestUpdate(1, 0, "", 1, 3, Extra(tokens=[300] * 2))])),
            "cannot be decoded: Expected `array` of length <= 1",
        ),
        (
            encode_frame(StepDone(1, [RequestUpdate(1, 0, "", 1, 3, Extra(logprobs=[LIKELY]))])),
            "cannot be decoded: Expected `array` of length <= 20",
        ),
        (
            encode_frame(StepDone(1, [RequestUpdate(1, 0, "", 1, 3)] * 65)),
            "cannot be decoded: Expected `array` of length <= 64",
        ),
        (encode_frame(StepDone(1, [], ["a prompt"])), "cannot be decoded: Expected `int`, got `str`"),  # type: ignore[list-item]  # as no engine sends it
        (encode_frame(Warned("a prompt", {})), "cannot be decoded"),  # type: ignore[arg-type]  # as no engine sends it
    ],
    ids=[
        "a counter that is NaN",
        "thousands of counters",
        "2^31 sequences",
        "two tokens in an update",
        "21 likely tokens",
        "65 updates",
        "another type",
        "another event",
    ],
)
async def test_a_frame_out_of_range_ends_its_engine_with_a_reason_without_its_text(frame: bytes, fault: str) -> None:
    received: list[Struct] = []
    link, theirs = await linked(received.append)
    with capture_logs() as logs, theirs:
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(theirs, frame)
        await asyncio.wait_for(link.closed.wait(), 10)
    assert fault in (link.fault or "")
    assert "prompt" not in (link.fault or "")
    assert (received, logs) == ([], [])


async def test_another_engines_frame_is_received_between_two_turns_of_a_flood() -> None:
    order: list[str] = []
    clock = SetClock()

    def flooded(_: Struct) -> None:
        order.append("flood")
        clock.now += 0.001

    flood, floods = await linked(flooded, clock=clock)
    other, others = await linked(lambda _: order.append("other"))
    with floods, others:
        frames = encode_frame(Loading(0.5)) * 1000
        assert floods.send(frames) == len(frames)
        others.send(encode_frame(Loading(0.5)))
    # Either link closes once it received all that its engine sent.
    await asyncio.gather(flood.closed.wait(), other.closed.wait())
    assert order.count("flood") == 1000
    assert order.index("other") < 20


async def test_the_last_frames_of_an_engine_that_is_gone_are_received_before_its_end() -> None:
    received: list[bool] = []
    clock = SetClock()

    def slow(_: Struct) -> None:
        clock.now += 1.0
        received.append(link.closed.is_set())

    link, theirs = await linked(slow, clock=clock)
    with theirs:
        theirs.send(encode_frame(Loading(0.5)) * 10)
    await asyncio.wait_for(link.closed.wait(), 10)
    assert received == [False] * 10


async def test_a_second_outcome_of_a_load_is_refused() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        engine.receive(READY)
        for outcome in (READY, LoadFailed("a fixed text")):
            with pytest.raises(Exception, match="reported the outcome of its load twice"):
                engine.receive(outcome)
        assert (world.events, world.entry.state) == (["ready"], "ready")


async def test_an_engine_that_floods_the_log_is_refused_and_one_that_warns_now_and_then_is_not() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        with capture_logs() as logs:
            for _ in range(100):
                world.now += 2.0
                engine.receive(Warned("cells.not_stored", {"why": "the disk is full"}))
            with pytest.raises(Exception, match="logged more than 60 entries within 60 s"):
                flood(world, engine.receive)
        assert 100 <= sum(entry["event"] == "cells.not_stored" for entry in logs) <= 160


def flood(world: World, receive: Callable[[Any], None]) -> None:
    """Warn a thousand times at once."""
    for _ in range(1000):
        receive(Warned("cells.not_stored", {"why": "the disk is full"}))


async def test_a_reason_of_a_failed_load_has_no_control_characters() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        assert isinstance(engine.sent[0], Load)
        engine.receive(LoadFailed("\x1b[2Jno\nforged line"))
        assert world.replica.reason == "\\x1b[2Jno\\nforged line"


def test_progress_is_reported_a_hundred_times_at_most_however_often_an_engine_sends_it() -> None:
    reports: list[float] = []
    replica = Replica("cpu", lambda: None, lambda: reports.append(replica.progress))
    for part in range(100_001):
        replica.advance(part / 100_000)
    replica.advance(0.5)
    assert (len(reports), replica.progress) == (100, 1.0)
