"""A hostile user: attacks one after the other, drawn by a seed."""

import asyncio
import base64
import contextlib
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import msgspec

from benchmarks.soaking.books import Json
from benchmarks.soaking.load import endless

# Models of the soak's daemon: the template has a trick for each number, the other has a projector.
ODD, SIGHT = "odd", "sight"
_LINE_BYTES = 1 << 25
_REST_S = 10.0
_SIDE = 4000
_GRAMMARS = (
    'root ::= "a"{100000}',
    "root ::= " + '"a"* ' * 300,
    'root ::= "a" root "a"? root? | "a"',
    "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1} r{n + 1}? | [a-z]\n" for n in range(40)) + "r40 ::= [a-z]",
    "root ::= root",
    "root ::= [a-z",
)
_SCHEMAS: tuple[Json, ...] = (
    {"type": "string", "pattern": "^(a|b|ab)*c(.{0,1000}x){100}$"},
    {"type": "string", "pattern": "^(((a{0,100}){0,100}){0,100})$"},
    {"type": "array", "minItems": 1_000_000, "items": {"type": "integer"}},
    {"enum": [f"value {number * 7919 % 100_003}" for number in range(20_000)]},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "$ref": "#/$defs/a"},
    {"allOf": [{"type": "integer", "multipleOf": 2**62 + 2 * number + 1} for number in range(300)]},
)
_GARBAGE = (
    b"\xff\xfe{}\n",
    b"[" * 200_000 + b"\n",
    b'{"a":' * 100_000 + b"\n",
    b"\x00" * 100_000 + b"\n",
    b'{"jsonrpc":"2.0","id":[]}\n' * 1000,
    b"a" * (9 << 20) + b"\n",
)


def large_picture() -> str:
    """Return an image of 16 megapixels in a few KB of base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE)).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


class Connection:
    """One connection, of which nothing is expected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0

    def send(self, method: str, params: object = None) -> None:
        """Send a request."""
        self._sent += 1
        request = {"jsonrpc": "2.0", "id": self._sent, "method": method, "params": params or {}}
        self.writer.write(msgspec.json.encode(request) + b"\n")

    async def read(self, answers: int, seconds: float) -> None:
        """Read this many terminal responses, for so long at most."""
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(seconds):
                while answers and (line := await self.reader.readline()):
                    answers -= b'"method"' not in line[:60]


class Attacker:
    """One user's tricks on one daemon; `tricks` counts how often each was played."""

    def __init__(self, socket: Path, seed: int, templates: int, picture: str) -> None:
        self._socket = socket
        self._random = Random(seed)
        self._templates = templates
        self._picture = picture
        self._plays: list[Callable[[Connection], Awaitable[None]]] = [
            *(self._template, self._template, self._grammar, self._schema, self._garbage, self._half_frame),
            *(self._unread, self._silent, self._flood, self._labels, self._texts, self._images),
            *(self._cancel, self._leave, self._administer, self._small_answers),
        ]
        self.tricks: dict[str, int] = {}

    async def run(self, until: asyncio.Event) -> None:
        """Play tricks until the event."""
        while not until.is_set():
            play = self._random.choice(self._plays)
            self.tricks[play.__name__[1:]] = self.tricks.get(play.__name__[1:], 0) + 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._play(play)
            await asyncio.sleep(self._random.expovariate(4))

    async def _play(self, play: Callable[[Connection], Awaitable[None]]) -> None:
        connection = Connection(*await asyncio.open_unix_connection(str(self._socket), limit=_LINE_BYTES))
        try:
            await play(connection)
        finally:
            connection.writer.transport.abort()

    async def _template(self, connection: Connection) -> None:
        trick = [{"role": "user", "content": str(self._random.randrange(self._templates))}]
        connection.send("infer", {"model": ODD, "messages": trick, "max_tokens": 2, "timeout_ms": 20_000})
        await connection.read(1, 30)

    async def _grammar(self, connection: Connection) -> None:
        connection.send("infer", endless(grammar=self._random.choice(_GRAMMARS), max_tokens=300))
        await connection.read(1, _REST_S)

    async def _schema(self, connection: Connection) -> None:
        connection.send("infer", endless(json_schema=self._random.choice(_SCHEMAS), max_tokens=300))
        await connection.read(1, _REST_S)

    async def _garbage(self, connection: Connection) -> None:
        connection.writer.write(self._random.choice(_GARBAGE))
        await connection.read(2, 1)

    async def _half_frame(self, connection: Connection) -> None:
        connection.writer.write(b'{"jsonrpc":"2.0","id":1,"method":"infer","params":{"prompt":"' + b"a" * (7 << 20))
        await asyncio.sleep(self._random.uniform(1, 5))

    async def _unread(self, connection: Connection) -> None:
        for _ in range(4):
            connection.send("infer_stream", endless(logprobs=20))
        await asyncio.sleep(self._random.uniform(2, 12))

    async def _small_answers(self, connection: Connection) -> None:
        for _ in range(2000):
            connection.send("models/list")
        await asyncio.sleep(self._random.uniform(1, 5))

    async def _silent(self, _connection: Connection) -> None:
        many = [await asyncio.open_unix_connection(str(self._socket)) for _ in range(100)]
        await asyncio.sleep(self._random.uniform(1, 5))
        for _, writer in many:
            writer.transport.abort()

    async def _flood(self, connection: Connection) -> None:
        for _ in range(200):
            connection.send("infer", endless(max_tokens=self._random.randint(1, 400), seed=self._random.randrange(99)))
        await connection.read(200, _REST_S)

    async def _labels(self, connection: Connection) -> None:
        for _ in range(50):
            connection.send("infer_stream", endless(max_tokens=100, client=f"label {self._random.random()}"))
        await connection.read(50, _REST_S)

    async def _texts(self, connection: Connection) -> None:
        words = " ".join(str(self._random.random()) for _ in range(400))
        connection.send("tokenize", {"text": "a " * (1 << 20)})
        connection.send("infer", {"prompt": words, "max_tokens": 20, "session": str(self._random.random())})
        connection.send("embed", {"input": [words[:500]] * 64})
        await connection.read(3, _REST_S)

    async def _images(self, connection: Connection) -> None:
        part = {"type": "image", "data": self._picture}
        messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *[part] * 4]}]
        connection.send("infer", {"model": SIGHT, "messages": messages, "max_tokens": 2, "timeout_ms": 20_000})
        await connection.read(1, 30)

    async def _cancel(self, connection: Connection) -> None:
        for number in range(1, 100):
            connection.send("infer_stream", endless())
            notification = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}}
            connection.writer.write(msgspec.json.encode(notification) + b"\n")
        await connection.read(99, _REST_S)

    async def _leave(self, connection: Connection) -> None:
        for _ in range(20):
            connection.send("infer_stream", endless())
        await asyncio.sleep(self._random.uniform(0, 0.5))

    async def _administer(self, connection: Connection) -> None:
        for method in ("daemon/drain", "daemon/reload", "models/list", "daemon/status", "rpc.discover"):
            connection.send(method)
        connection.send("models/unload", {"model": "guide"})
        await connection.read(6, _REST_S)
