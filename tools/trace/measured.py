"""An answer of three tokens, one token of it, a capacity call, and a decode step of three streams."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from car_daemon.telemetry import logs
from tests.engine.fakes import FakeContext, FakeEngine, run_command
from tools.scripted.daemon import scripted_daemon
from tools.trace.profile import Profile, profiled

_TOKENS = 3
_STREAMS = 3
_WARM_UP = 3  # answers before the measured one: first calls import and build
_TRIES = 5
_TIMEOUT_S = 30.0


class Measured(NamedTuple):
    """The calls of each."""

    stream: Profile
    token: Profile
    capacity: Profile
    step: Profile


def measure() -> Measured:
    """Run the daemon on a scripted engine, and an engine loop on a ledger in place of llama.cpp."""
    logs.configure("error", "console")
    stream, token, capacity = asyncio.run(asyncio.wait_for(_daemon(), _TIMEOUT_S))
    return Measured(stream, token, capacity, _step())


async def _daemon() -> tuple[Profile, Profile, Profile]:
    steps: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    with tempfile.TemporaryDirectory() as folder:
        daemon, socket = scripted_daemon(Path(folder) / "card.sock", steps.put_nowait)
        serving = asyncio.create_task(daemon.run())
        client = await _Client.connected(socket.path, steps)
        for _ in range(_WARM_UP):
            await client.stream()
            await client.capacity()
        stream = await _least(client.stream)
        token = min([await client.second_token() for _ in range(_TRIES)], key=_calls)
        capacity = await _least(client.capacity)
        client.close()
        daemon.stop()
        await serving
        socket.close()
    return stream, token, capacity


async def _least(act: Callable[[], Awaitable[None]]) -> Profile:
    """Return the profile with the fewest calls of several: timers of the daemon fire in some of them."""
    profiles = list[Profile]()
    for _ in range(_TRIES):
        with profiled() as profile:
            await act()
        profiles.append(profile)
    return min(profiles, key=_calls)


def _calls(profile: Profile) -> int:
    return profile.calls


class _Client:
    """A raw connection that reads each chunk before the engine's next step."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        steps: asyncio.Queue[Callable[[], None]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._steps = steps
        self._id = 0

    @classmethod
    async def connected(cls, path: Path, steps: asyncio.Queue[Callable[[], None]]) -> "_Client":
        """Connect to the daemon's socket."""
        return cls(*await asyncio.open_unix_connection(path), steps)

    async def stream(self) -> None:
        """Stream an answer, a step at a time."""
        self._begin()
        for _ in range(_TOKENS):
            await self._token()
        assert "result" in await self._receive()

    async def second_token(self) -> Profile:
        """Stream an answer; return the calls of its second token, from the engine's frame to the socket."""
        self._begin()
        await self._token()
        with profiled() as profile:
            await self._token()
        await self._token()
        assert "result" in await self._receive()
        return profile

    async def capacity(self) -> None:
        """Read the capacity."""
        self._send("inference/capacity", {})
        assert "result" in await self._receive()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _begin(self) -> None:
        self._send("infer_stream", {"prompt": "a b c", "max_tokens": _TOKENS})

    async def _token(self) -> None:
        (await self._steps.get())()
        assert "params" in await self._receive()

    def _send(self, method: str, params: dict[str, Any]) -> None:
        self._id += 1
        call = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._writer.write(json.dumps(call).encode() + b"\n")

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._reader.readline())
        return message


def _step() -> Profile:
    engine = FakeEngine(FakeContext())
    engine.turn(*(run_command(key, [1, 2, 3 + key], 40, return_tokens=False) for key in range(_STREAMS)))
    for _ in range(_WARM_UP):
        engine.turn()
    with profiled() as step:
        engine.turn()
    return step
