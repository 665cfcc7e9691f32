"""The engine's side of children: each job has its answer, and a child that fails costs its own job alone."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest

from car_base.ipc.codec import MAX_FRAME_BYTES, encode_frame
from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_engine.child.children import ChildLost, ChildProcess
from car_engine.child.frames import (
    ChildFailed,
    Declined,
    Defect,
    Invalid,
    Opened,
    OpenTemplate,
    Render,
    Segments,
    decode_job,
    expected,
)
from car_engine.child.limits import MEMORY_BYTES, cpu_s, wall_s
from car_engine.child.link import receive
from car_protocol.conversation import Message
from tests.engine.child.servers import fake_children

OPENING = OpenTemplate("chat", "source", "<s>", "</s>", [])
RENDER = Render("chat", Chat(messages=[Message("user", "hi")]), 100)
HI = Segments(2, [("hi", True)])


def read(link: socket.socket) -> object:
    return decode_job(receive(link))


def test_a_job_has_its_own_answer_and_a_template_is_the_first_job_of_each_child() -> None:
    with fake_children() as (children, server), ThreadPoolExecutor() as pool, ExitStack() as links:
        first, second = (links.enter_context(server.child()) for _ in range(2))
        opened = pool.submit(children.ask, OPENING)
        # The child that came last takes it.
        assert read(second) == OPENING
        second.sendall(encode_frame(Opened(True)))
        assert opened.result() == Opened(True)
        spare = links.enter_context(server.child())
        assert (server.ended, read(spare)) == ([1], OPENING)
        spare.sendall(encode_frame(Opened(True)))
        answers = [pool.submit(children.ask, RENDER) for _ in range(2)]
        # Neither is answered before both have their jobs: a child that is free again would take the second job too.
        assert [read(link) for link in (second, spare)] == [RENDER, RENDER]
        for link in (second, spare):
            link.sendall(encode_frame(HI))
        assert [each.result() for each in answers] == [HI, HI]
        assert first.recv(1) == b""


def test_a_template_that_cannot_be_used_is_forgotten() -> None:
    with fake_children() as (children, server), ThreadPoolExecutor() as pool, ExitStack() as links:
        _, child = (links.enter_context(server.child()) for _ in range(2))
        opened = pool.submit(children.ask, OPENING)
        read(child)
        child.sendall(encode_frame(Invalid("line 1: no")))
        assert (opened.result(), server.ended) == (Invalid("line 1: no"), [])


@pytest.mark.parametrize("last", [b"", b"\1\0", (MAX_FRAME_BYTES + 1).to_bytes(4, "little") + b"more", b"\1\0\0\0\xc1"])
def test_a_child_that_ends_or_sends_no_frame_costs_its_job_and_is_replaced(last: bytes) -> None:
    with fake_children() as (children, server), ThreadPoolExecutor() as pool, ExitStack() as links:
        _, child = (links.enter_context(server.child()) for _ in range(2))
        lost = pool.submit(children.ask, RENDER)
        read(child)
        child.sendall(last)
        child.close()
        with pytest.raises(ChildLost, match="more than 2 s of a core, or more than 512 MiB"):
            lost.result()
        another = links.enter_context(server.child())
        assert server.ended == [2]
        answer = pool.submit(children.ask, RENDER)
        read(another)
        another.sendall(encode_frame(HI))
        assert answer.result() == HI


def test_a_child_that_ended_between_two_jobs_costs_none() -> None:
    with fake_children() as (children, server), ThreadPoolExecutor() as pool, ExitStack() as links:
        _, child = (links.enter_context(server.child()) for _ in range(2))
        child.close()
        answer = pool.submit(children.ask, RENDER)
        another = links.enter_context(server.child())
        assert read(another) == RENDER
        another.sendall(encode_frame(HI))
        assert (answer.result(), server.ended) == (HI, [2])


@pytest.mark.parametrize(("resident", "seconds"), [(MEMORY_BYTES + 1, 0), (0, 100)])
def test_a_child_is_lost_that_takes_too_much_memory_or_too_long(resident: int, seconds: int) -> None:
    ours, theirs = socket.socketpair()
    times = count(step=seconds)
    with ours, theirs, pytest.raises(ChildLost):
        ChildProcess(7, ours, lambda _: resident, lambda: float(next(times))).ask(RENDER)


def test_a_child_that_does_not_read_is_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        theirs.close()
        with pytest.raises(ChildLost):
            ChildProcess(7, ours).ask(RENDER)


def test_a_job_has_two_seconds_of_a_core_for_each_mebibyte_and_six_times_as_long_in_all() -> None:
    assert [cpu_s(size) for size in (0, 1 << 20, (1 << 20) + 1, 8 << 20)] == [2, 2, 4, 16]
    assert wall_s(1) == 12


def test_what_a_child_declines_is_a_refusal_and_what_it_cannot_do_a_fault() -> None:
    assert expected(Segments, HI) is HI
    with pytest.raises(Refusal, match="invalid_params") as refused:
        expected(Segments, Declined("tools", "line 1: no"))
    assert refused.value.data == {"param": "tools", "why": "line 1: no"}
    with pytest.raises(ChildFailed, match="KeyError at a:1"):
        expected(Segments, Defect("KeyError at a:1"))
