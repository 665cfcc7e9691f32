"""One HTTP request and its answer: the body read within bounds, the answer written at the client's pace."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from car_client.door.keys import Key
from car_http.crowds import BodyMemory
from car_http.guard import RequestHead
from car_http.problems import Problem
from car_protocol.limits import MAX_FRAME_BYTES

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# A longer body could not be sent on: a frame of the daemon is not longer either.
MAX_BODY_BYTES = MAX_FRAME_BYTES
BODY_TIMEOUT_S = 30.0
# Of a body that was refused so much is read, until nothing came for so long, before the connection ends.
MOST_DISCARDED_BYTES = 8 * MAX_BODY_BYTES
SILENCE_S = 1.0
JSON = "application/json"
_CLOSE = {"connection": "close"}


class Exchange:
    """A request and its answer; `key` is the key that it carried."""

    def __init__(
        self,
        head: RequestHead,
        receive: Receive,
        send: Send,
        bodies: BodyMemory,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self.head = head
        self.key: Key | None = None
        self.admitted: Callable[[], bool] = lambda: True  # whether the key is still one of the door's
        self.more_headers: Mapping[str, str] = {}  # on every answer
        self.path: Mapping[str, str] = {}  # the members of the path
        self.files: Mapping[str, bytes] = {}  # the parts of a form beside its request
        self.started = False  # the head of the answer is sent
        self.status = 499  # of the answer; this one while there is none, as for a client that left
        self.receive = receive
        self.send = send
        self._bodies = bodies
        self._unread = False  # the client may still send a part of the body
        self._task: asyncio.Task[Any] | None = None  # answers the request, while it can give way
        self._problem: Problem | None = None  # the cause, if the task was cancelled to give way
        self._body_timeout_s = body_timeout_s
        self._watch: asyncio.Task[None] | None = None
        self._on_disconnect: Callable[[], object] | None = None

    @property
    def owner(self) -> str:
        """The name under which its requests share the door with others: the key's, empty without a key."""
        return self.key.name if self.key else ""

    def give_way(self, problem: Problem) -> None:
        """Cancel the request, because others need what it takes."""
        if self._task is not None and self._problem is None:
            self._problem = problem
            self._task.cancel()

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """Raise Problem in place of the cancellation by which the request gives way."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self._problem is None or self._task is None or self._task.uncancel():
                raise  # also if it was cancelled for another reason at once
            try:
                raise self._problem from None
            finally:
                self._problem = None  # it keeps the frames that it goes through, and they keep this exchange
        finally:
            self._task = None

    def query(self, name: str) -> str | None:
        """Return a member of the query, None if it is absent."""
        return next(iter(self.queries(name)), None)

    def queries(self, name: str) -> list[str]:
        """Return each value of a member of the query that may come several times."""
        return parse_qs(self.head.query.decode("latin-1")).get(name, [])

    async def while_connected(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call, which is cancelled when the client leaves; raises Disconnected then."""
        calling = asyncio.create_task(call)
        self.on_disconnect(calling.cancel)
        try:
            return await calling
        except asyncio.CancelledError:
            if calling.cancelled() and not cancelling():
                raise Disconnected from None
            raise
        finally:
            calling.cancel()
            del calling  # its error keeps this frame

    async def body(self) -> bytes:
        """Return the body; raises Problem for one that is too long, too slow or too much, and Disconnected."""
        self._unread = True
        length = self.head.headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            raise _too_long()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._whole_body()
        except TimeoutError:
            message = f"the body took longer than {self._body_timeout_s:g} s: send it at once"
            raise Problem(408, "request_timeout", message, headers=_CLOSE) from None

    def on_disconnect(self, act: Callable[[], object]) -> None:
        """Have `act` called once the client has left; the body must have been read."""
        self._on_disconnect = act
        if self._watch is None:
            self._watch = asyncio.create_task(self._until_gone(), name="http client")

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of the answer; raises HeadOnly if it is all of an answer that has no length."""
        self.started = True
        self.status = status
        lines = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        lines += [(name.encode(), value.encode("latin-1", "replace")) for name, value in self.more_headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": lines})
        if self.head.method == "HEAD" and "content-length" not in headers:
            await self.end()
            raise HeadOnly

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client does not read."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the answer."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, kind: str = JSON
    ) -> None:
        """Send a whole answer."""
        given = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
        await self.start(status, given)
        if self._unread:
            await self.write(body)
            await self._discard()
            await self.end()
        else:
            await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def close(self) -> None:
        """Stop watching for the client's end, and count the body no more."""
        self._bodies.give_back(self.give_way)
        self._on_disconnect = None
        if self._watch is not None:
            self._watch.cancel()

    async def _whole_body(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            pieces.append(message["body"])
            self._bodies.take(self.owner, self.give_way, len(pieces[-1]))
            size += len(pieces[-1])
            if size > MAX_BODY_BYTES:
                raise _too_long()
            if not message.get("more_body"):
                self._unread = False
                return b"".join(pieces)

    async def _discard(self) -> None:
        """Read what the client still sends: the end of the connection before it would lose the answer on its way."""
        left = MOST_DISCARDED_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while left > 0:
                    message = await asyncio.wait_for(self.receive(), SILENCE_S)
                    if not message.get("more_body"):  # the end, or the client left
                        return
                    left -= len(message["body"])

    async def _until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if self._on_disconnect is not None:
            self._on_disconnect()


def cancelling() -> bool:
    """Return whether the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class HeadOnly(Exception):
    """The answer to HEAD is whole: what GET would stream may never end."""


class Disconnected(Exception):
    """The client left before its request was whole."""


def _too_long() -> Problem:
    message = f"the body has more than {MAX_BODY_BYTES} bytes: send a shorter conversation or smaller images"
    return Problem(413, "request_too_large", message, headers=_CLOSE)
