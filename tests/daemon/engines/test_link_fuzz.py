"""Frames of a hostile engine through a real socket: it is ended, and its requests are answered."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import cast

import pytest
import uvloop
from msgspec import Struct

from car_base.ipc.codec import encode_frame, packed_reading
from car_base.ipc.frames import (
    End,
    Extra,
    Fault,
    Heartbeat,
    LoadFailed,
    Parked,
    PlainText,
    Prepared,
    Reading,
    Refused,
    RequestUpdate,
    StepDone,
    TokenIds,
    Warned,
)
from car_daemon.engines.link import EngineLink
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.answer import FinishReason, Usage
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.text import TokenizeParams
from tests.daemon.captured_log import capture_logs
from tests.daemon.links import Link, ready_of
from tests.pace import HANG_S

REQUESTS = 8
FAULTS: list[Fault | None] = [None, None, "decode", "constraint", "image"]
REASONS: list[FinishReason | None] = ["stop", "length", None]
READING = packed_reading(Reading())
READY = ready_of(sequences=4, context_tokens=512, kv_bytes=1)
ODD_NUMBERS = (0, 1, -1, 2**31, 2**53, -(2**63), 2**64 - 1)


class Client:
    """A client that counts its terminal answers."""

    chunks = 0

    def __init__(self) -> None:
        self.answers = 0

    def chunk(self, text: str, extra: Extra | None, index: int | None = None) -> None: ...

    def progress(self, params: Struct) -> None: ...

    def result(self, result: Struct) -> None:
        self.answers += 1

    def error(self, error: RpcError) -> None:
        self.answers += 1


class HostileEngine:
    """Makes frames: right ones, right ones with odd values, damaged ones, and arbitrary bytes."""

    def __init__(self, seed: int, keys: list[int]) -> None:
        self._random = Random(seed)
        self._keys = keys

    def piece(self) -> bytes:
        """Return a frame, or bytes in place of one."""
        random = self._random
        frame = bytearray(encode_frame(self._frame()))
        kind = random.random()
        if kind < 0.03:
            frame[random.randrange(len(frame))] = random.randrange(256)
        elif kind < 0.04:
            return random.randbytes(random.randrange(200))
        elif kind < 0.05:
            return random.choice([b"\xff" * 8, b"\0" * 4, b"\0\0\0\x04" + b"a" * 100, b"\1\0\0\0\xc1"])
        return bytes(frame)

    def _number(self) -> int:
        return self._random.choice(ODD_NUMBERS) if self._random.random() < 0.1 else self._random.randrange(6)

    def _key(self) -> int:
        return self._random.choice(self._keys) if self._random.random() < 0.9 else self._number()

    def _frame(self) -> Struct:
        random = self._random
        kinds: list[Callable[[], Struct]] = [
            lambda: StepDone(self._number(), [self._update() for _ in range(random.randrange(4))]),
            lambda: StepDone(self._number(), [self._update()]),
            lambda: Prepared(self._key(), random.randbytes(random.randrange(20)), self._number(), "", READING),
            lambda: Parked(self._key()),
            lambda: Refused(self._key(), random.choice(["limit", "none", ""]), {"a": self._number()}, "x"),
            lambda: TokenIds(self._key(), random.randbytes(7)),
            lambda: PlainText(self._key(), "text"),
            lambda: Heartbeat(self._number(), float(self._number()), {"a": 1.0}),
            lambda: LoadFailed("why"),
            lambda: Warned("curve.outdated", {"of": self._number()}),
            lambda: READY,
        ]
        return random.choice(kinds)()

    def _update(self) -> RequestUpdate:
        random = self._random
        end = None
        if random.random() < 0.2:
            usage = Usage(self._number(), self._number(), self._number())
            fault = random.choice(FAULTS)
            end = End(random.choice(REASONS), None, usage, float("nan"), -1.0, fault)
        extra = random.choice([None, Extra([self._number()], reasoning="r")])
        return RequestUpdate(self._key(), self._number(), "text", self._number(), self._number(), extra, end)


async def serve(seed: int) -> tuple[list[int], str | None]:
    """Serve requests by a hostile engine until its link ends; return how often each was answered, and any fault."""
    scheduler = Scheduler(Gate())
    pool = ModelPool({"m": ModelSettings(Path("m"))}, "m", on_change=lambda _: None, on_progress=lambda _: None)
    inference = Inference(scheduler, pool, clock=lambda: 0.0, arrived=lambda _: None, left=lambda _: None)
    pool.default.replicas[0].become("ready", ready=READY)
    inference.events.engine_ready(pool.default, 1, Link(), READY)
    clients = [Client() for _ in range(REQUESTS)]
    origin = CallOrigin(Identity(0), 1, 1, "a", None, None)
    keys = [
        key
        for number, client in enumerate(clients[:-2])
        for key in inference.infer(
            InferParams(prompt="a", n=1 + number % 3), origin, cast(Responder, client), size=1, streams=bool(number % 2)
        )
    ]
    keys += [
        inference.tokenization.tokenize("m", TokenizeParams(text="a"), origin, cast(Responder, client))
        for client in clients[-2:]
    ]
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(
        lambda: EngineLink(lambda message: inference.events.frame_received(1, message)), sock=ours
    )
    engine = HostileEngine(seed, keys)
    _, writer = await asyncio.open_unix_connection(sock=theirs)
    for _ in range(400):
        writer.write(engine.piece())
    writer.close()
    await asyncio.wait_for(link.closed.wait(), HANG_S)
    inference.events.engine_lost(1)
    inference.work.model_failed(pool.default)
    assert inference.runner.answers == {}
    assert len(scheduler.requests) == scheduler.totals.in_flight == len(inference.tokenization.jobs) == 0
    return [client.answers for client in clients], link.fault


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 700), marks=pytest.mark.slow)])
def test_whatever_an_engine_sends_every_request_is_answered_once(seeds: range) -> None:
    faults = []
    for seed in seeds:
        with capture_logs() as logs:
            answers, fault = uvloop.run(serve(seed))
        assert answers == [1] * REQUESTS, seed
        assert [entry for entry in logs if entry["event"] in {"engine.frame_failed", "loop.failed"}] == [], seed
        faults.append(fault)
    assert sum(fault is not None for fault in faults) > len(faults) / 2
