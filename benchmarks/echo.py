"""The least that a daemon could be: asyncio with uvloop, msgspec, and one line answered with one line.

`python -m benchmarks.echo SOCKET` answers any request with the params it came with.
"""

import asyncio
import sys
from typing import cast

import msgspec
import uvloop
from msgspec import Raw, Struct


class _Call(Struct):
    id: int
    method: str
    params: Raw = Raw(b"null")


class _Result(Struct):
    id: int
    result: Raw
    jsonrpc: str = "2.0"


class Echo(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Call).decode
        self._encode = msgspec.json.Encoder().encode
        # Mutable state: the line that is not whole yet.
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once it is open."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with what came."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        answers = []
        for line in lines:
            call = self._decode(line)
            answers.append(self._encode(_Result(call.id, call.params)) + b"\n")
        self._transport.write(b"".join(answers))


async def main(path: str) -> None:
    """Answer until the end."""
    server = await asyncio.get_running_loop().create_unix_server(Echo, path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
