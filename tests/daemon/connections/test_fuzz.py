"""Random bytes and nearly correct requests through real sockets: they cause no defect and leave nothing behind."""

import asyncio
import json
import os
import time
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import uvloop

from car_base.host import defects
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.connections.in_flight import CANCEL
from car_daemon.methods.dispatch import Dispatch
from car_daemon.people.people import People
from car_protocol.errors import RpcError
from car_protocol.infer import CancelParams, Empty
from car_protocol.limits import Limits
from car_protocol.methods import METHODS
from tests.daemon.captured_log import capture_logs
from tests.daemon.connections.pairs import Connections, Done, Json, Pair, connections
from tests.pace import HANG_S

LIMITS = Limits(max_frame_bytes=20_000, frame_timeout_ms=500, slow_reader_ms=50, max_output_bytes=300_000)
IDS: tuple[object, ...] = (0, 1, -1, 2**53 - 1, 2**53, "a", "", "x" * 200, "é\ud800", None, True, 1.5, [], {})
VALUES: tuple[object, ...] = (*IDS, 1e400, -0.0, "\x00", "prompt", ["a"] * 40, {"a": {"b": []}})
ODD = (
    b"",
    b"\r",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 5000,
    b"{" * 3000,
    b"NaN",
    b'"\\ud800"',
    b"  ",
    b"\x0c",
)


class Fuzz:
    """Makes streams of bytes: requests, nearly correct requests, and arbitrary bytes."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def session(self) -> list[bytes]:
        """Return a stream in pieces."""
        data = b"".join(self._line() for _ in range(self._random.randrange(1, 60)))
        edges = sorted(self._random.randrange(len(data) + 1) for _ in range(self._random.randrange(8)))
        return [data[start:end] for start, end in zip([0, *edges], [*edges, len(data)], strict=True)]

    def choice(self, *ways: str) -> str:
        """Return one of several ways to go on."""
        return self._random.choice(ways)

    def _line(self) -> bytes:
        kinds = [self._request, self._request, self._request, self._batch, self._mutated, self._odd, self._large]
        end = self._random.choice([b"\n", b"\n", b"\r\n", b"\n\n"])
        return self._random.choice(kinds)() + end

    def _object(self) -> Json:
        random = self._random
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": random.choice([*METHODS, CANCEL, "none", "rpc."])}
        if random.random() < 0.9:
            message["id"] = random.choice(IDS) if random.random() < 0.2 else random.randrange(1000)
        if random.random() < 0.8:
            message["params"] = self._params(message["method"])
        if random.random() < 0.1:
            message[random.choice(["jsonrpc", "method", "params", "result", "x"])] = random.choice(VALUES)
        return message

    def _params(self, method: str) -> object:
        random = self._random
        if random.random() < 0.1:
            return random.choice(VALUES)
        given: Json = {"prompt": "a"} if method.startswith("infer") else {}
        given |= {"text": "a"} if method == "tokenize" else {"tokens": [1]} if method == "detokenize" else {}
        given |= {"id": random.randrange(1000)} if method == CANCEL else {}
        for _ in range(random.randrange(3)):
            given[random.choice(["max_tokens", "stop", "logprobs", "json_schema", "x", "_meta"])] = random.choice(
                VALUES
            )
        return given

    def _request(self) -> bytes:
        return json.dumps(self._object()).encode()

    def _batch(self) -> bytes:
        entries = [self._object() for _ in range(self._random.choice([0, 1, 3, 32, 33]))]
        odd: tuple[object, ...] = self._random.choice([(), (1,), ([],), (None,)])
        return json.dumps([*entries, *odd]).encode()

    def _mutated(self) -> bytes:
        line = bytearray(self._request())
        for _ in range(self._random.randrange(1, 4)):
            line[self._random.randrange(len(line))] = self._random.randrange(256)
        return bytes(line)

    def _odd(self) -> bytes:
        return self._random.choice(ODD) + self._random.randbytes(self._random.randrange(3))

    def _large(self) -> bytes:
        return (
            b"a" * self._random.choice([100, 19_999, 20_000, 20_001, 50_000]) if self._random.random() < 0.1 else b"{}"
        )


class Handlers:
    """Answers at once, or with a stream that continues while it is not read."""

    def table(self) -> dict[str, Any]:
        return {name: self._slow if spec.infers else self._fast for name, spec in METHODS.items()} | {
            CANCEL: self._cancel
        }

    def _fast(self, _connection: Connection, _call: RpcCall, _params: object) -> Done:
        return Done()

    def _cancel(self, connection: Connection, _call: RpcCall, params: CancelParams) -> Empty:
        connection.requests.cancel(params.id)
        return Empty()

    def _slow(self, _connection: Connection, call: RpcCall, _params: object) -> None:
        loop = asyncio.get_running_loop()
        call.work = CallWork(lambda reason: call.error(RpcError(reason)), lambda: None, lambda: None)
        for number in range(5):
            loop.call_later(0.001 * number, call.chunk, "text" * 1000, None)
        loop.call_later(0.005, call.result, Done())


async def play(pair: Pair, fuzz: Fuzz) -> None:
    """Send one stream, read as it comes or not at all, and end the connection in one of several ways."""
    reading = asyncio.create_task(pair.reader.read()) if fuzz.choice("reads", "does not") == "reads" else None
    with suppress(ConnectionError):
        for piece in fuzz.session():
            if pair.writer.transport.is_closing():
                break
            pair.writer.write(piece)
            await pair.writer.drain()
    how = fuzz.choice("closes", "aborts", "half-closes", "half-closes")
    if how == "half-closes" and not pair.writer.transport.is_closing():
        pair.writer.write_eof()
        with suppress(ConnectionError):
            check(await (reading or pair.reader.read()))
    elif how == "aborts":
        pair.writer.transport.abort()
    pair.writer.close()
    if reading is not None:
        await asyncio.wait([reading])
        with suppress(ConnectionError):
            reading.result()
    await asyncio.wait_for(pair.gone(), HANG_S)


def check(received: bytes) -> None:
    """Check that every line is a message of the contract, and none reports an internal error."""
    for line in received.splitlines():
        message = json.loads(line)
        for each in message if isinstance(message, list) else [message]:
            assert each["jsonrpc"] == "2.0"
            assert each.get("error", {}).get("code") != -32603, each


async def survive(seconds: float, seed: int) -> int:
    """Run clients of all kinds for a time in seconds; return their number."""
    asyncio.get_running_loop().set_exception_handler(defects.loop_failed)
    fuzz, sessions = Fuzz(seed), 0
    before: int | None = None
    until = time.monotonic() + seconds
    async with connections(LIMITS, Dispatch(Handlers().table(), People(), lambda _: None, lambda *_: 0)) as all_of_them:
        while time.monotonic() < until:
            await asyncio.gather(*[play(await all_of_them.connect(), fuzz) for _ in range(10)])
            sessions += 10
            open_files = len(os.listdir("/dev/fd"))
            before = before or open_files
            assert open_files == before
        await answers_still(all_of_them)
    return sessions


async def answers_still(all_of_them: Connections) -> None:
    """Check that a plain request is answered."""
    pair = await all_of_them.connect()
    pair.send("models/list", 1)
    assert (await pair.receive())["id"] == 1


@pytest.mark.parametrize(("seconds", "seed"), [(1, 1), pytest.param(8, 2, marks=pytest.mark.slow)])
def test_no_bytes_bring_out_a_defect_or_leave_anything_behind(seconds: float, seed: int) -> None:
    with capture_logs() as logs:
        sessions = uvloop.run(survive(seconds, seed))
    assert sessions >= 10
    assert logs == []
