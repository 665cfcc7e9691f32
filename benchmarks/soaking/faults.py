"""Faults, one a minute, in an order drawn by a seed."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import psutil

from benchmarks.soaking.books import Books
from benchmarks.soaking.client import Peer
from benchmarks.soaking.load import endless

_CLIENTS = 3
_STREAMS = 3
_BURST = (4, 20)
# A client in a process of its own, with streams that it never reads to their end.
_CLIENT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode())
connection.recv(1)
print("begun", flush=True)
while connection.recv(1 << 16):
    pass
"""
_HOSTILE = (b"\xff\xfe{}\n", b"[" * 200_000 + b"\n", b"{" * 100 + b"\n", b"\x00\n", b'{"jsonrpc":"2.0","id":[]}\n')


def configuration(queue_limit: int) -> str:
    """Return the daemon's configuration; little is kept for later, so that a leak shows."""
    saved = f"[scheduler]\nsaved_bytes = {32 << 20}\n"
    return f'{saved}[queue]\nlimit = {queue_limit}\noverflow = "drop_newest"\n'


class Faults:
    """The faults of one daemon; each returns what it did once it is over."""

    def __init__(self, socket: Path, config: Path, daemon: int, books: Books, seed: int) -> None:
        self._socket = socket
        self._config = config
        self._daemon = psutil.Process(daemon)
        self._books = books
        self._random = Random(seed)
        self._limits = self._alternating()

    def endless(self) -> Iterator[Callable[[], Awaitable[str]]]:
        """Yield faults: all of them in some order, again and again."""
        every = [self._kill_engine, self._stop_engine, self._hang_engine, self._unread, self._burst]
        every += [self._hostile, self._reload, self._kill_clients]
        while True:
            yield from self._random.sample(every, len(every))

    def write_config(self) -> None:
        """Write the configuration that the next reload reads."""
        self._config.write_text(configuration(next(self._limits)), encoding="utf-8")

    async def _engine(self) -> psutil.Process:
        peer = await Peer.connect(self._socket, self._books)
        # Answered by an engine that is up: after an end of the last one, another is on its way.
        await peer.call("infer", {"prompt": "Hi", "max_tokens": 1})
        engines = (await peer.call("daemon/status"))["result"]["models"][0]["engines"]
        await peer.leave()
        return psutil.Process(engines[0]["pid"])

    async def _kill_engine(self) -> str:
        (await self._engine()).kill()
        return "engine killed"

    async def _stop_engine(self) -> str:
        return await self._suspend(self._random.uniform(1, 3))

    async def _hang_engine(self) -> str:
        return await self._suspend(9)

    async def _suspend(self, seconds: float) -> str:
        engine = await self._engine()
        engine.suspend()
        await asyncio.sleep(seconds)
        if engine.is_running():
            engine.resume()
        return f"engine stopped for {seconds:.1f} s"

    async def _unread(self) -> str:
        peer = await Peer.connect(self._socket, self._books)
        requests = [peer.send("infer_stream", endless(logprobs=20)) for _ in range(2)]
        await peer.begun(requests[0])
        peer.stop_reading()
        await asyncio.sleep(13)
        peer.read_on()
        ends = [(await peer.wait(request)).get("error", {}).get("message", "a result") for request in requests]
        await peer.leave()
        return f"a client did not read for 13 s: {', '.join(ends)}"

    async def _burst(self) -> str:
        peers = [await Peer.connect(self._socket, self._books) for _ in range(_BURST[0])]
        params = endless(max_tokens=30)
        requests = [(peer, peer.send("infer", params)) for _ in range(_BURST[1]) for peer in peers]
        answers = [await peer.wait(request) for peer, request in requests]
        for peer in peers:
            await peer.leave()
        refused = sum("error" in answer for answer in answers)
        self._books.check(0 < refused < len(answers), f"{refused} refused of a burst of {len(answers)}")
        return f"a burst of {len(answers)}, {refused} refused"

    async def _hostile(self) -> str:
        peer = await Peer.connect(self._socket, self._books)
        request = peer.send("infer", endless(max_tokens=50))
        for frame in _HOSTILE:
            peer.write_bytes(frame)
        await peer.wait(request)
        self._books.check(len(peer.refused) == len(_HOSTILE), f"{len(peer.refused)} hostile frames were answered")
        peer.write_bytes(b"a" * (1 << 20) * 8 + b"aa")
        await peer.ended()
        self._books.check(peer.refused[-1]["code"] == 1008, "a frame that is too large was not told so")
        return "hostile frames"

    async def _reload(self) -> str:
        self.write_config()
        self._daemon.send_signal(1)
        return "configuration reloaded"

    async def _kill_clients(self) -> str:
        requests = b""
        for number in range(_STREAMS):
            call = {"jsonrpc": "2.0", "id": number, "method": "infer_stream", "params": endless()}
            requests += msgspec.json.encode(call) + b"\n"
        clients = []
        for _ in range(_CLIENTS):
            command = [sys.executable, "-c", _CLIENT, str(self._socket), requests.decode()]
            clients.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
            for _ in range(_STREAMS):
                self._books.send("infer_stream")
                self._books.leave("infer_stream")
        for client in clients:
            assert client.stdout is not None
            await client.stdout.readline()
        for client in clients:
            client.kill()
            await client.wait()
        return f"{_CLIENTS} clients killed"

    def _alternating(self) -> Iterator[int]:
        while True:
            yield from (24, 16)
