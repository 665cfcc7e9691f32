"""Bounds on what clients of the door take together: connections, wrong keys, bytes of bodies, calls of the daemon."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from car_http.problems import RETRY_AFTER_MS, Problem
from car_protocol.limits import MAX_CONNECTIONS_PER_UID

# Two dozen of the longest bodies. Each takes up to three times its size until it is answered: in its call, in the frame
# that is sent, and in what its response repeats. As values, up to 15 times its size, one body at a time is in memory.
MOST_BODY_BYTES = 192 * 1024 * 1024
# Of the daemon's connections of a user; an eighth stays for the door's own calls and the user's other programs.
MOST_CALLS = MAX_CONNECTIONS_PER_UID * 7 // 8
# Promises: the tenth mistake is still answered at once, and an address guesses 86,400 keys a day at most.
WRONG_KEYS = 10
WRONG_KEY_S = 1.0
# More addresses than the private networks of IPv4 that a router of a house or an office gives out: 16 of 256.
_MOST_KNOWN = 4096
_ABSENT = object()


class Strangers:
    """Connections to ports that no admitted request came by; beyond `limit` the oldest gives way.

    Any program of the machine may connect to a port, and would otherwise take every descriptor of the door.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By connection, the oldest first: how it is refused, and the address of another machine.
        self._refusals: dict[object, tuple[Callable[[], None], str | None]] = {}
        self._of: dict[str, dict[object, None]] = {}  # connections of other machines by address, the oldest first

    def __repr__(self) -> str:
        return f"<Strangers {len(self._refusals)}/{self._limit}>"

    def __contains__(self, connection: object) -> bool:
        """Return whether no admitted request came by a connection."""
        return connection in self._refusals

    def add(self, connection: object, refuse: Callable[[], None], address: str | None = None) -> None:
        """Add a new connection; the oldest is refused if there are too many."""
        self._refusals[connection] = refuse, address
        if address is not None:
            self._of.setdefault(address, {})[connection] = None
        if len(self._refusals) > self._limit:
            self._refuse(next(iter(self._refusals)))

    def discard(self, connection: object) -> None:
        """Forget a connection that ended, or by which a request was admitted."""
        _, address = self._refusals.pop(connection, (None, None))
        if address is not None:
            self._of[address].pop(connection)
            if not self._of[address]:
                del self._of[address]

    def refuse_oldest(self, address: str) -> bool:
        """Refuse the oldest connection of an address; return whether it has one."""
        found = next(iter(self._of.get(address, ())), None)
        if found is not None:
            self._refuse(found)
        return found is not None

    def refuse_oldest_of_most(self) -> bool:
        """Refuse the oldest connection of the address with most; return whether other machines have one."""
        return bool(self._of) and self.refuse_oldest(max(self._of, key=lambda each: len(self._of[each])))

    def _refuse(self, connection: object) -> None:
        refuse, _ = self._refusals[connection]
        self.discard(connection)
        refuse()


class Visitors:
    """All connections of other machines, by address: an address has `of_address` at most, all have `limit`.

    A new connection takes the place of the oldest without a key, of its own address or of the address with most.
    """

    def __init__(self, strangers: Strangers, of_address: int, limit: int) -> None:
        self._strangers = strangers
        self._of_address = of_address
        self._limit = limit
        self._counts = Counter[str]()

    def __repr__(self) -> str:
        return f"<Visitors {self._counts.total()}/{self._limit} of {len(self._counts)}>"

    def enter(self, address: str) -> bool:
        """Count a new connection; return false if there is no place for it."""
        if self._counts[address] >= self._of_address and not self._strangers.refuse_oldest(address):
            return False
        if self._counts.total() >= self._limit and not self._strangers.refuse_oldest_of_most():
            return False
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection no more."""
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


class WrongKeys:
    """Requests of other machines that no key admitted, by address: so many at once, then one in a time.

    Beyond that an address is refused, with the right key too: else one could guess on. A key that was right from the
    address before stays welcome, so that a program with an old key locks out none of its neighbours.
    """

    def __init__(self) -> None:
        self._free_at: dict[str, float] = {}  # seconds; when all attempts of an address are free again
        self._welcome: dict[tuple[str, str], None] = {}  # addresses and names of keys, the newest last

    def __repr__(self) -> str:
        return f"<WrongKeys {len(self._free_at)}, welcome {len(self._welcome)}>"

    def admit(self, address: str, name: str, now: float) -> None:
        """Admit a request with a right key of this name; raises Problem."""
        if self._welcome.pop((address, name), _ABSENT) is _ABSENT:
            self._check(address, now)
        self._welcome[address, name] = None
        _keep(self._welcome)

    def refuse(self, address: str, now: float) -> None:
        """Count a request without a right key; raises Problem if there were too many."""
        self._check(address, now)
        free_at = max(self._free_at.pop(address, now), now)
        self._free_at[address] = free_at + WRONG_KEY_S
        _keep(self._free_at)

    def _check(self, address: str, now: float) -> None:
        wait_s = self._free_at.get(address, now) - now - (WRONG_KEYS - 1) * WRONG_KEY_S
        if wait_s > 0:
            message = f"{WRONG_KEYS} requests without a right key came from this address: wait before the next"
            raise Problem(429, "too_many_wrong_keys", message, retry_after_ms=math.ceil(wait_s * 1000))


def _keep(known: dict[Any, Any]) -> None:
    """Forget the oldest of too many."""
    if len(known) > _MOST_KNOWN:
        del known[next(iter(known))]


# Ends a request with an error.
GiveWay = Callable[[Problem], None]


class Crowd(ABC):
    """What requests take together of one thing; a request is known by the way it gives way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: dict[GiveWay, tuple[str, int]] = {}  # owner and amount, the oldest first
        self._taken = Counter[str]()  # by owner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._taken.total()}/{self._limit} of {len(self._requests)}>"

    def take(self, owner: str, request: GiveWay, amount: int) -> None:
        """Count an amount for an owner's request. Beyond the limit the newest of the owner with most gives way.

        Raises Problem if that is this request.
        """
        _, before = self._requests.get(request, (owner, 0))
        self._requests[request] = owner, before + amount
        self._taken[owner] += amount
        while self._taken.total() > self._limit:
            problem = self._too_many(self._taken.total())
            newest = self._newest_of_most()
            self.give_back(newest)
            if newest == request:
                raise problem
            newest(problem)

    def give_back(self, request: GiveWay, amount: int | None = None) -> None:
        """Count an amount of a request no more, all of it without one; nothing of a request that gave way."""
        owner, before = self._requests.get(request, ("", 0))
        left = 0 if amount is None else max(before - amount, 0)
        if left:
            self._requests[request] = owner, left  # in its place by age
        else:
            self._requests.pop(request, None)
        self._taken[owner] -= before - left
        if not self._taken[owner]:
            del self._taken[owner]

    def _newest_of_most(self) -> GiveWay:
        most = max(self._taken, key=self._taken.__getitem__)
        return next(each for each in reversed(self._requests) if self._requests[each][0] == most)

    @abstractmethod
    def _too_many(self, taken: int) -> Problem:
        """Return the error of a request that gives way."""


class BodyMemory(Crowd):
    """The bytes of all bodies that are being received or answered."""

    def __init__(self, limit: int = MOST_BODY_BYTES) -> None:
        super().__init__(limit)

    def _too_many(self, taken: int) -> Problem:
        message = f"the bodies of all requests would take {taken} bytes, the limit is {self._limit}: "
        return Problem(
            503,
            "too_many_bytes",
            message + "send fewer long requests at once",
            headers={"connection": "close"},
            retry_after_ms=RETRY_AFTER_MS,
        )


class DaemonCalls(Crowd):
    """The calls of the daemon for all requests; each call has a connection to the daemon."""

    def __init__(self, limit: int = MOST_CALLS) -> None:
        super().__init__(limit)

    def _too_many(self, taken: int) -> Problem:
        message = f"{taken} calls of the daemon are too many, the limit is {self._limit}, and your key has most of them"
        return Problem(429, "too_many_requests", f"{message}: send fewer at once", retry_after_ms=RETRY_AFTER_MS)
