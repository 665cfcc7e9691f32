"""The people of the configuration: the users that may name them, their numbers, and their weights."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Annotated

from msgspec import Meta, Struct

from car_daemon.people.identity import Identity, name_of
from car_protocol.errors import RpcError
from car_protocol.meta import note

# Numbers of people begin beyond the uids, and none is given twice: what an engine keeps for one reaches no other.
_FIRST_NUMBER = 2**32

# Any answer of the person frees a place; the door's clients wait as long at a full queue whose pace is unknown.
_RETRY_MS = 1000

NOT_A_DELEGATE = "this process may not name a person: add its uid to `delegates` of [daemon]"
UNKNOWN_PERSON = "there is no such person: add a table [people.NAME] to card.toml, and reload"


class PersonTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[people.NAME]`: a weight beside other people and users, limits, and the hash of its key at the HTTP door."""

    weight: Annotated[float, Meta(ge=0.001, le=1000), note("the share of the person, as that of a user")] = 1.0
    in_flight: Annotated[
        Annotated[int, Meta(ge=1)] | None, note("requests without an answer that it may have at once; more get 1001")
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        note("tokens that are computed or sampled for it in a day; then no request begins until midnight: 1001"),
    ] = None
    background: Annotated[bool, note("its requests are of class `throughput`, whatever they say")] = False
    key: Annotated[
        Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None,
        note("the SHA-256 of its key at `card-http`; `carctl people add` makes it"),
    ] = None


class People:
    """Identities of people, by delegate and name; root, the daemon's own user and `delegates` may name every person.

    `spent` returns the tokens of today by the name of an identity; `clock` and `day_ends` the time now and that of the
    next day, in seconds since 1970.
    """

    def __init__(
        self,
        delegates: Collection[int] = (),
        tables: Mapping[str, PersonTable] | None = None,
        *,
        spent: Callable[[str], int] = lambda _: 0,
        day_ends: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._spent = spent
        self._day_ends = day_ends
        self._clock = clock
        self._tables: Mapping[str, PersonTable] = {}  # by name
        self._delegates: frozenset[int] = frozenset()
        self._identities: dict[int, dict[str, Identity]] = {}  # by delegate and name
        self._numbers = count(_FIRST_NUMBER)
        self._in_flight: Counter[str] = Counter()  # requests without an answer, by person
        self.configure(delegates, tables or {})

    def __repr__(self) -> str:
        return f"<People {len(self._tables)}, {sum(map(len, self._identities.values()))} identities>"

    def configure(self, delegates: Collection[int], tables: Mapping[str, PersonTable]) -> None:
        """Admit these people from now on; a person that comes back, or has another key, is another identity."""
        same = {name for name, table in tables.items() if name in self._tables and self._tables[name].key == table.key}
        self._delegates = frozenset({0, os.getuid(), *delegates})
        self._tables = tables
        self._identities = {
            uid: {name: each for name, each in own.items() if name in same}
            for uid, own in self._identities.items()
            if uid in self._delegates
        }

    def identity(self, uid: int, person: str) -> Identity:
        """Return the identity of a person that a process of a user names; raises RpcError `not_permitted`."""
        if uid not in self._delegates:
            raise RpcError("not_permitted", why=NOT_A_DELEGATE)
        if person not in self._tables:
            raise RpcError("not_permitted", why=UNKNOWN_PERSON)
        return self._of(uid, person)

    def begin(self, person: str, answers: int = 1, superseded: int = 0) -> None:
        """Count a request of a person, several answers as so many requests, until `end`; it ends `superseded` others.

        Raises RpcError: `quota` at a limit, `invalid_params` for more answers than the person may ever have at once.
        """
        table, used = self._tables[person], self._in_flight[person] - superseded
        if table.in_flight is not None and answers > table.in_flight:
            why = f"this person may have {table.in_flight} requests at once: ask for fewer answers"
            raise RpcError("invalid_params", param="n", why=why)
        if table.in_flight is not None and used + answers > table.in_flight:
            raise RpcError("quota", limit="in_flight", value=table.in_flight, used=used, retry_after_ms=_RETRY_MS)
        self.check_day(person)
        self._in_flight[person] += answers

    def check_day(self, person: str) -> None:
        """Raise RpcError `quota` once the tokens of a person's day are used up; a person that was removed may end."""
        table = self._tables.get(person)
        if table is None or (most := table.tokens_per_day) is None or (tokens := self._spent(name_of(person))) < most:
            return
        ends_at = self._day_ends()
        wait_ms = max(_RETRY_MS, round((ends_at - self._clock()) * 1000))
        raise RpcError(
            "quota", limit="tokens_per_day", value=most, used=tokens, retry_after_ms=wait_ms, ends_at=round(ends_at)
        )

    def end(self, person: str, answers: int = 1) -> None:
        """Count a request of a person no more."""
        self._in_flight[person] -= answers
        if not self._in_flight[person]:
            del self._in_flight[person]

    def is_background(self, person: str) -> bool:
        """Return whether the requests of a person give way to all others."""
        return self._tables[person].background

    def weights(self) -> dict[int, float]:
        """Return the weights of people that have one, by number."""
        weighted = [(name, table.weight) for name, table in self._tables.items() if table.weight != 1.0]
        return {self._of(uid, name).number: weight for name, weight in weighted for uid in self._delegates}

    def _of(self, uid: int, person: str) -> Identity:
        own = self._identities.setdefault(uid, {})
        found = own.get(person)
        if found is None:
            found = own[person] = Identity(uid, person, next(self._numbers), self._tables[person].key or "")
        return found
