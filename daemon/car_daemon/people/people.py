"""The people of the configuration: the users that may name them, their numbers, and their weights."""

import os
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import count
from typing import Annotated

from msgspec import Meta, Struct

from car_daemon.people.identity import Identity
from car_protocol.errors import RpcError
from car_protocol.meta import note

# Numbers of people begin beyond the uids, and none is given twice: what an engine keeps for one reaches no other.
_FIRST_NUMBER = 2**32

# Any answer of the person frees a place; the door's clients wait as long at a full queue whose pace is unknown.
_RETRY_MS = 1000

NOT_A_DELEGATE = "this process may not name a person: add its uid to `delegates` of [daemon]"
UNKNOWN_PERSON = "there is no such person: add a table [people.NAME] to card.toml, and reload"


class PersonTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[people.NAME]`: a weight beside other people and users, and the hash of its key at the HTTP door."""

    weight: Annotated[float, Meta(ge=0.001, le=1000), note("the share of the person, as that of a user")] = 1.0
    in_flight: Annotated[
        Annotated[int, Meta(ge=1)] | None, note("requests without an answer that it may have at once; more get 1001")
    ] = None
    key: Annotated[
        Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None,
        note("the SHA-256 of its key at `card-http`; `carctl people add` makes it"),
    ] = None


class People:
    """Identities of people, by delegate and name; root, the daemon's own user and `delegates` may name every person."""

    def __init__(self, delegates: Collection[int] = (), tables: Mapping[str, PersonTable] | None = None) -> None:
        self._tables: Mapping[str, PersonTable] = {}  # by name
        self._delegates: frozenset[int] = frozenset()
        self._identities: dict[tuple[int, str], Identity] = {}
        self._numbers = count(_FIRST_NUMBER)
        self._in_flight: Counter[str] = Counter()  # requests without an answer, by person
        self.configure(delegates, tables or {})

    def __repr__(self) -> str:
        return f"<People {len(self._tables)}, {len(self._identities)} identities>"

    def configure(self, delegates: Collection[int], tables: Mapping[str, PersonTable]) -> None:
        """Admit these people from now on; a person that was removed and comes back is another identity."""
        self._delegates = frozenset({0, os.getuid(), *delegates})
        self._tables = tables
        kept = self._identities.items()
        self._identities = {key: each for key, each in kept if key[0] in self._delegates and key[1] in tables}

    def identity(self, uid: int, person: str) -> Identity:
        """Return the identity of a person that a process of a user names; raises RpcError `not_permitted`."""
        if uid not in self._delegates:
            raise RpcError("not_permitted", why=NOT_A_DELEGATE)
        if person not in self._tables:
            raise RpcError("not_permitted", why=UNKNOWN_PERSON)
        return self._of(uid, person)

    def begin(self, person: str) -> None:
        """Count a request of a person, until `end`; raises RpcError `quota` at its limit."""
        most, used = self._tables[person].in_flight, self._in_flight[person]
        if most is not None and used >= most:
            raise RpcError("quota", limit="in_flight", value=most, used=used, retry_after_ms=_RETRY_MS)
        self._in_flight[person] += 1

    def end(self, person: str) -> None:
        """Count a request of a person no more."""
        self._in_flight[person] -= 1
        if not self._in_flight[person]:
            del self._in_flight[person]

    def weights(self) -> dict[int, float]:
        """Return the weights of people that have one, by number."""
        weighted = [(name, table.weight) for name, table in self._tables.items() if table.weight != 1.0]
        return {self._of(uid, name).number: weight for name, weight in weighted for uid in self._delegates}

    def _of(self, uid: int, person: str) -> Identity:
        key = uid, person
        found = self._identities.get(key)
        if found is None:
            found = self._identities[key] = Identity(uid, person, next(self._numbers))
        return found
