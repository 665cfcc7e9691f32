"""Which of a model's replicas a request runs on: where its session or its prompt is at home, else the least loaded."""

from collections import Counter, OrderedDict
from collections.abc import Collection

from msgspec import Struct

from car_daemon.scheduler.request import Request, Session

# Prompts are compared in blocks of so many tokens, of four bytes each.
_BLOCK_BYTES = 4 * 64
# So many blocks and sessions are remembered; those that were not used for the longest time are forgotten.
_MOST_BLOCKS = 4096
_MOST_SESSIONS = 4096


class Place(Struct, frozen=True):
    """A replica with a free sequence: its engine, and the share of its sequences that is leased."""

    engine: int
    load: float


def blocks_of(tokens: bytes, namespace: str) -> tuple[int, ...]:
    """Return one number for each whole block of a prompt: equal where it and all before it are equal."""
    blocks = []
    number = hash(namespace)
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        number = hash((number, tokens[end - _BLOCK_BYTES : end]))
        blocks.append(number)
    return tuple(blocks)


class Router:
    """Remembers what ran where; a guess that is wrong costs a prompt that is computed again, nothing else."""

    def __init__(self) -> None:
        # Mutable state, the oldest first: where each session of a model ran last, with how many are where, and the
        # prompts that every engine saw.
        self._homes: OrderedDict[tuple[str, Session], int] = OrderedDict()
        self._at_home: Counter[int] = Counter()
        self._blocks: dict[int, OrderedDict[int, None]] = {}

    def choose(self, request: Request, places: Collection[Place]) -> int:
        """Return the engine of one of the places."""
        if len(places) == 1:
            return next(iter(places)).engine
        home = self._homes.get((request.model, request.session)) if request.session is not None else None
        if home is not None and any(place.engine == home for place in places):
            return home
        best = min(places, key=lambda place: (-self._shared(request, place.engine), *self._burden(place)))
        return best.engine

    def started(self, request: Request, engine: int) -> None:
        """Take note of where a request runs."""
        if request.session is not None:
            self._settle((request.model, request.session), engine)
        seen = self._blocks.setdefault(engine, OrderedDict())
        for block in request.blocks:
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > _MOST_BLOCKS:
            seen.popitem(last=False)

    def withdraw(self, engine: int) -> None:
        """Forget an engine that is gone."""
        self._blocks.pop(engine, None)
        for settled in [settled for settled, home in self._homes.items() if home == engine]:
            del self._homes[settled]
        del self._at_home[engine]

    def _settle(self, session: tuple[str, Session], engine: int) -> None:
        self._at_home[engine] += 1
        if session in self._homes:
            self._at_home[self._homes[session]] -= 1
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _MOST_SESSIONS:
            _, left = self._homes.popitem(last=False)
            self._at_home[left] -= 1

    def _shared(self, request: Request, engine: int) -> int:
        seen = self._blocks.get(engine, ())
        return next((number for number, block in enumerate(request.blocks) if block not in seen), len(request.blocks))

    def _burden(self, place: Place) -> tuple[float, int, int]:
        return place.load, self._at_home[place.engine], place.engine
