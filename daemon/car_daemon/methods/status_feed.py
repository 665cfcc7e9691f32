"""The status at intervals, encoded once a tick for all subscribers of a user."""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from msgspec import Struct

from car_base.host import defects
from car_base.host.timers import Periodic
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.sockets.peer import Peer

# The shortest interval of the protocol; others are multiples of it.
TICK_S = 0.1

# Returns the encoded notification for a user id.
Encode = Callable[[int], bytes]


class Subscriber(Protocol):
    """A connection that status notifications are sent to."""

    peer: Peer

    def push(self, frame: bytes) -> None:
        """Write an encoded notification now; one to a client that does not read is dropped."""
        ...


class Subscription(Struct):
    """The ticks between two notifications, and the number of the tick that the next one is due at."""

    every: int
    due: int


class StatusFeed:
    """Notifies subscribers; those that are due at a tick take turns with the frames of connections.

    `encoder` is called at most once a tick, and what it returns once for each user.
    """

    def __init__(self, fair_queue: FairQueue, encoder: Callable[[], Encode]) -> None:
        self._fair_queue = fair_queue
        self._encoder = encoder
        self._timer = Periodic(TICK_S, self._tick)
        self._ticks = 0
        self._subscriptions: dict[Subscriber, Subscription] = {}
        self._due: dict[Subscriber, None] = {}  # in order
        self._joined = False  # whether the fair queue calls `work`
        self._encode: Encode | None = None  # of the tick, made when its first notification is sent

    def __repr__(self) -> str:
        return f"<StatusFeed subscribers={len(self._subscriptions)} due={len(self._due)}>"

    def add(self, subscriber: Subscriber, interval_s: float) -> None:
        """Notify a subscriber at this interval, in place of any before; the first time after one interval."""
        every = max(1, round(interval_s / TICK_S))
        if not self._subscriptions:
            self._timer.start()
        self._subscriptions[subscriber] = Subscription(every, self._ticks + every)

    def remove(self, subscriber: Subscriber) -> None:
        """Notify a subscriber no more."""
        self._subscriptions.pop(subscriber, None)
        self._due.pop(subscriber, None)
        if not self._subscriptions:
            self._timer.stop()

    def work(self) -> bool:
        """Notify the next subscriber that is due; return True if more are."""
        if self._due:
            subscriber = next(iter(self._due))
            del self._due[subscriber]
            try:
                if self._encode is None:
                    self._encode = cache(self._encoder())
                subscriber.push(self._encode(subscriber.peer.uid))
            except Exception as error:  # noqa: BLE001 - a defect must not end the turns of the connections
                defects.report("status.failed", error)
        self._joined = bool(self._due)
        return self._joined

    def _tick(self) -> None:
        self._ticks += 1
        self._encode = None
        for subscriber, subscription in self._subscriptions.items():
            if subscription.due <= self._ticks:
                subscription.due = self._ticks + subscription.every
                self._due[subscriber] = None
        if self._due and not self._joined:
            self._joined = True
            self._fair_queue.join(self)
