"""Notifications for all streams of the door: the daemon has one subscription of a topic, not one a stream."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Raw, Struct

from car_client.errors import CardError
from car_http.daemon.connection import DaemonConnection, Ended, Event, Notice
from car_http.daemon.pool import DaemonPool
from car_http.problems import Problem
from car_protocol.limits import MAX_IN_FLIGHT

# A key is to the door what a connection is to the daemon, which has so many requests of one.
MOST_STREAMS = MAX_IN_FLIGHT


class Topic(Struct, frozen=True):
    """A method with its params, as pairs, that can be subscribed to."""

    method: str
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        """The call that subscribes."""
        return self.method, {"subscribe": True, **dict(self.params)}


def capacity_of(model: str | None) -> Topic:
    """Return the topic of a model's capacity, of the default one without a name."""
    return Topic("inference/capacity", (("model", model),) if model else ())


# The page promises another app's request within half a second; a tenth of it is left to the door and the browser.
STATUS = Topic("daemon/status", (("interval_ms", 400),))


class Listener:
    """The newest object that a stream has not taken: of several changes at once it gets the last."""

    def __init__(self) -> None:
        self.began = False  # its first object came
        self._newest: Raw | None = None
        self._error: CardError | None = None  # ended the subscription
        self._left = False
        self._ready = asyncio.Event()

    def give(self, newest: Raw) -> None:
        """Replace the object."""
        self.began = True
        self._newest = newest
        self._ready.set()

    def fail(self, error: CardError) -> None:
        """End the stream with an error."""
        self._error = error
        self._ready.set()

    def leave(self) -> None:
        """End the stream, because its client left."""
        self._left = True
        self._ready.set()

    async def next(self) -> Raw | None:
        """Wait for an object and take it; None once the client left. Raises CardError at the subscription's end."""
        await self._ready.wait()
        self._ready.clear()
        newest, self._newest = self._newest, None
        if self._left:
            return None
        if self._error is not None:
            raise self._error
        return newest


class Feeds:
    """The subscriptions by topic, each while a stream listens, and how many streams each owner has."""

    def __init__(self, pool: DaemonPool) -> None:
        self._pool = pool
        self._subscriptions: dict[Topic, _Subscription] = {}
        self._streams = Counter[str]()
        self._leaving = set[Callable[[], None]]()  # of the streams without an end

    @contextmanager
    def endless(self, leave: Callable[[], None]) -> Iterator[None]:
        """Have `leave` called if the door ends while the block runs."""
        self._leaving.add(leave)
        try:
            yield
        finally:
            self._leaving.discard(leave)

    def end(self) -> None:
        """End the streams that would not end by themselves."""
        for leave in list(self._leaving):
            leave()

    @contextmanager
    def counted(self, owner: str) -> Iterator[None]:
        """Count a stream of an owner for the length of a block; raises Problem if there are too many."""
        if self._streams[owner] >= MOST_STREAMS:
            message = f"this key has {MOST_STREAMS} streams of events open: close some, or share one among its users"
            raise Problem(429, "too_many_streams", message, retry=False)
        self._streams[owner] += 1
        try:
            yield
        finally:
            self._streams[owner] -= 1

    @asynccontextmanager
    async def listening(self, owner: str, topic: Topic) -> AsyncIterator[Listener]:
        """Listen for the length of a block; raises Problem if the owner has too many streams."""
        with self.counted(owner):
            subscription = self._subscription(topic)
            listener = subscription.join()
            try:
                with self.endless(listener.leave):
                    yield listener
            finally:
                subscription.leave(listener)

    def _subscription(self, topic: Topic) -> "_Subscription":
        def end() -> None:
            if self._subscriptions.get(topic) is subscription:
                del self._subscriptions[topic]

        subscription = self._subscriptions.get(topic) or _Subscription(self._pool, topic, end)
        self._subscriptions[topic] = subscription
        return subscription


class _Subscription:
    """One connection to the daemon; `on_end` is called once nobody listens, or when the connection ended."""

    def __init__(self, pool: DaemonPool, topic: Topic, on_end: Callable[[], None]) -> None:
        self._pool = pool
        self._topic = topic
        self._on_end = on_end
        self._listeners: dict[Listener, None] = {}  # in the order in which they came
        self._connection: DaemonConnection | None = None
        self._task = asyncio.create_task(self._run(), name="feed")

    def join(self) -> Listener:
        """Add a listener, which first gets the object of this moment: its counts change without a notification."""
        listener = Listener()
        self._listeners[listener] = None
        if self._connection is not None and self._connection.idle:
            self._connection.begin(*self._topic.call)
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener, and end the subscription with the last listener."""
        self._listeners.pop(listener, None)
        if not self._listeners:
            self._on_end()
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async with self._pool.call(*self._topic.call) as connection:
                self._connection = connection
                try:
                    while True:
                        for event in await connection.events():
                            self._share(event)
                finally:
                    connection.close()  # it is subscribed: no other call may have it
        except CardError as error:
            self._on_end()
            for listener in self._listeners:
                listener.fail(error)

    def _share(self, event: Event) -> None:
        """Give a result to the listeners that wait for their first object, and a change to the others."""
        if isinstance(event, Ended):
            for listener in self._listeners:
                if not listener.began:
                    listener.give(event.result)
        elif isinstance(event, Notice):
            for listener in self._listeners:
                if listener.began:
                    listener.give(event.params)
