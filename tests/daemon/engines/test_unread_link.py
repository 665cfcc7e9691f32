"""An engine that does not read keeps only the prompts of live requests in the daemon's memory."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.codec import FrameReader, UnsentFrames, decode_to_engine, encode_frame
from car_base.ipc.frames import Forget, Halt, PrepareTexts
from car_daemon.engines.link import EngineLink

LONG = "x" * (1 << 20)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[EngineLink, socket.socket]]:
    """A link, and the engine's end of its socket, from which nothing reads."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with theirs:
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: EngineLink(print), sock=ours)
        yield link, theirs
        link.abort()
        await link.closed.wait()


async def received(theirs: socket.socket, last: int) -> list[Any]:
    """Read frames at the engine's end until one of the key `last`."""
    reader, messages = FrameReader(), list[Any]()
    while not messages or messages[-1].key != last:
        data = await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        messages += [decode_to_engine(body) for body in reader.feed(data)]
    return messages


async def test_prompts_of_cancelled_requests_leave_while_an_engine_does_not_read() -> None:
    async with linked() as (link, theirs):
        for key in range(100):
            link.send(PrepareTexts(key, [LONG], None))
            link.send(Forget(key))
        messages = await received(theirs, last=99)
    prompts = [message.key for message in messages if isinstance(message, PrepareTexts)]
    assert prompts == [0], "the link keeps the frame that it began to write, and no other"


async def test_an_engine_that_reads_again_gets_the_prompts_of_live_requests_in_their_order() -> None:
    async with linked() as (link, theirs):
        for key in range(10):
            link.send(PrepareTexts(key, [LONG], None))
        for key in range(2, 10, 2):
            link.send(Forget(key))
        link.send(Halt(10, deadline=False))
        messages = await received(theirs, last=10)
    prompts = [message.key for message in messages if isinstance(message, PrepareTexts)]
    assert prompts == [0, 1, 3, 5, 7, 9]
    assert [message.key for message in messages if not isinstance(message, PrepareTexts)] == [2, 4, 6, 8, 10]


MESSAGES: dict[Any, Callable[[int], Any]] = {
    PrepareTexts: lambda key: PrepareTexts(key, ["a"], None),
    Forget: Forget,
    Halt: lambda key: Halt(key, deadline=False),
}
STEPS = st.lists(st.tuples(st.sampled_from([*MESSAGES, None]), st.integers(0, 3)), max_size=30)


@given(STEPS)
def test_frames_leave_in_their_order_but_for_forgotten_prompts(steps: list[tuple[Any, int]]) -> None:
    unsent, expected = UnsentFrames(), list[Any]()
    for kind, key in steps:
        if kind is None:
            frame = unsent.take()
            assert frame == (encode_frame(expected.pop(0)) if expected else None)
            continue
        unsent_prompts = [each for each in expected if isinstance(each, PrepareTexts) and each.key == key]
        if kind is PrepareTexts and unsent_prompts:
            continue  # because a prompt is sent anew only after its engine was to forget it
        message = MESSAGES[kind](key)
        if kind is Forget:
            expected = [each for each in expected if each not in unsent_prompts]
        expected.append(message)
        unsent.add(message, encode_frame(message))
    while expected:
        assert unsent.take() == encode_frame(expected.pop(0))
    assert unsent.take() is None
