"""The engines of one model, here and on other machines, their leases, and the choice of an engine for a request."""

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from car_base.host.devices import is_on
from car_base.ipc.codec import TOKEN_BYTES
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.request import Request, Session


class Share(Struct, eq=False):
    """One host's part of a model; `usable` is the part of its declared sequences that may be leased."""

    usable: float = 1.0
    declared: int = 0
    leased: int = 0
    engines: set[int] = field(default_factory=set)  # by number

    @property
    def most(self) -> int:
        """Sequences that may run at once: at least one, so that a pressed host finishes its work."""
        return max(1, int(self.declared * self.usable)) if self.declared else 0

    @property
    def free(self) -> int:
        """Sequences that may be leased now."""
        return max(0, self.most - self.leased)

    @property
    def shut(self) -> bool:
        """Whether pressure, and not a lack of free sequences, keeps requests away."""
        return self.usable < 1 and self.free == 0


class Hosts:
    """The shares of a model's hosts, and their sums, which change with one share at a time."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self.declared = 0
        self.leased = 0
        self.most = 0
        self.free = 0

    def __repr__(self) -> str:
        return f"<Hosts {len(self._shares)}, {self.leased}/{self.most} leased>"

    def add(self, host: str, engine: int, sequences: int, usable: float) -> Share:
        """Count an engine without leases; return its host's share."""
        share = self._shares.setdefault(host, Share())
        share.engines.add(engine)
        return self._change(share, declared=sequences, usable=usable)

    def remove(self, host: str, engine: int, sequences: int, leased: int) -> Share:
        """Count an engine and its leases no more; return its host's share."""
        share = self._shares[host]
        share.engines.remove(engine)
        if not share.engines:
            del self._shares[host]
        return self._change(share, declared=-sequences, leased=-leased)

    def engines(self, host: str) -> set[int]:
        """Return the numbers of a host's engines."""
        return self._shares[host].engines

    def lease(self, host: str, change: int) -> Share:
        """Count a lease, or its end; return the host's share."""
        return self._change(self._shares[host], leased=change)

    def press(self, host: str, usable: float) -> Share | None:
        """Let this part of a host's sequences be leased; return its share, or None if it has none."""
        share = self._shares.get(host)
        return None if share is None else self._change(share, usable=usable)

    def _change(self, share: Share, *, declared: int = 0, leased: int = 0, usable: float | None = None) -> Share:
        most, free = share.most, share.free
        share.declared += declared
        share.leased += leased
        share.usable = share.usable if usable is None else usable
        self.declared += declared
        self.leased += leased
        self.most += share.most - most
        self.free += share.free - free
        return share


class EngineOffer(Struct, frozen=True):
    """An engine's declaration: sequences of one model, on one device, each of `context_tokens`.

    `rates` are its tokens per second with 1, 2, ... running sequences, empty if they were not measured; a prompt
    token takes as long as `prompt_share` answer tokens. `host` is another machine's name, None on this one.
    """

    model: str
    sequences: int
    device: str = "cpu"
    context_tokens: int = sys.maxsize
    rates: tuple[float, ...] = ()
    prompt_share: float = 1.0
    host: str | None = None

    def burden(self, leased: int) -> float:
        """Return the seconds of a token with one more sequence; without rates, the part of its sequences."""
        if not self.rates:
            return (leased + 1) / self.sequences
        return (leased + 1) / self.rates[min(leased, len(self.rates) - 1)]


class ReplicaEngine(Struct, eq=False):
    """One engine: its offer and its leases."""

    number: int
    offer: EngineOffer
    sessions: int  # that it ran last
    leased: set[int] = field(default_factory=set)  # keys of the requests that have a lease
    shut: bool = False  # the memory pressure of its host leaves it no lease
    usable: float = 1.0  # the part of its sequences that the memory pressure of its GPUs leaves

    @property
    def most(self) -> int:
        """Sequences that may be leased: at least one, so that an engine under pressure finishes its work."""
        return max(1, int(self.offer.sequences * self.usable))

    @property
    def free(self) -> int:
        """Sequences without a lease that may have one."""
        return 0 if self.shut else max(0, self.most - len(self.leased))


# Device, context tokens, and whether it is this machine.
_Kind = tuple[str, int, bool]


def _kind(offer: EngineOffer) -> _Kind:
    return offer.device, offer.context_tokens, offer.host is None


class Group:
    """The engines of a model on one device with sequences of one length, here or on other machines."""

    def __init__(self) -> None:
        self.free = 0  # sequences without a lease
        self.engines = 0
        self.open: dict[int, None] = {}  # the numbers of the engines that prepare new requests
        self.by_burden: LazyHeap[tuple[float, int, int], int] = LazyHeap()  # engines with a free sequence


class Groups:
    """The engines of one model by device and length of sequences, which decide where a request may run."""

    def __init__(self) -> None:
        self._groups: dict[_Kind, Group] = {}

    def of(self, offer: EngineOffer) -> Group:
        """Return the group of an engine that is in one."""
        return self._groups[_kind(offer)]

    def add(self, engine: ReplicaEngine) -> None:
        """Count an engine and its free sequences."""
        group = self._groups.setdefault(_kind(engine.offer), Group())
        group.engines += 1
        group.open[engine.number] = None
        group.free += engine.free

    def remove(self, engine: ReplicaEngine) -> None:
        """Count an engine no more."""
        group = self.of(engine.offer)
        group.engines -= 1
        group.free -= engine.free
        group.open.pop(engine.number, None)
        group.by_burden.discard(engine.number)
        if not group.engines:
            del self._groups[_kind(engine.offer)]

    def close(self) -> None:
        """Let the engines that are up prepare no new requests."""
        for group in self._groups.values():
            group.open.clear()

    def preparer(self, device: str | None) -> int | None:
        """Return the open engine on a device that has the longest context, so that it refuses what fits none.

        Of several the one with most tokens per second for one more request; None while none is open.
        """
        kinds = [kind for kind, group in self._groups.items() if group.open]
        if device is not None:
            kinds = [kind for kind in kinds if is_on(kind[0], device)]
        if not kinds:
            return None
        group = self._groups[max(kinds, key=lambda kind: (kind[1], kind[2]))]
        number = None if len(group.open) == 1 else group.by_burden.first()
        return number if number in group.open else next(iter(group.open))

    def free_on(self, device: str | None, *, here: bool) -> int:
        """Return the free sequences on a device, or on any, of this machine or of the others."""
        return sum(
            group.free for (place, _, local), group in self._groups.items() if local is here and is_on(place, device)
        )

    def free_for(self, request: Request) -> int:
        """Return the free sequences of this machine's engines that a request may run on."""
        return sum(group.free for here, group in self._suitable(request) if here)

    def least_burdened(self, request: Request, *, here: bool) -> int | None:
        """Return the free engine that gives a request most tokens per second; without `here`, of other machines."""
        heaps = [group.by_burden for local, group in self._suitable(request) if here or not local]
        ranks = [(rank, heap) for heap in heaps if (rank := heap.least()) is not None]
        return min(ranks, key=lambda each: each[0])[1].first() if ranks else None

    def serve(self, device: str | None) -> bool:
        """Return True if an engine is up on a device, or on any."""
        return any(is_on(place, device) for place, _, _ in self._groups)

    def suit(self, request: Request, offer: EngineOffer) -> bool:
        """Return True if a request may run on such an engine: on its device, in sequences that are long enough."""
        return is_on(offer.device, request.spec.device) and _fits(request, offer.context_tokens, self._groups)

    def _suitable(self, request: Request) -> list[tuple[bool, Group]]:
        """Return the groups that a request may run in, each with whether it is of this machine."""
        device = request.spec.device
        return [
            (local, group)
            for (place, tokens, local), group in self._groups.items()
            if is_on(place, device) and _fits(request, tokens, self._groups)
        ]


def _fits(request: Request, context_tokens: int, kinds: Iterable[_Kind]) -> bool:
    """Return True if a request fits such sequences, or none of its model that it may use is longer."""
    if request.prompt.tokens + request.prompt.room <= context_tokens:
        return True
    device = request.spec.device
    return context_tokens == max(tokens for place, tokens, _ in kinds if is_on(place, device))


class Replicas:
    """The engines of one model that are up; they are ranked while there are several."""

    def __init__(self) -> None:
        self.engines: dict[int, ReplicaEngine] = {}  # by number
        self.groups = Groups()  # the same engines
        self.hosts = Hosts()  # the engines on other machines
        self.here: set[int] = set()  # the numbers of the engines on this machine
        self.declared = 0  # sequences, over all machines
        self.withheld = 0  # of them, under the pressure of GPUs
        self.leased = 0

    def __repr__(self) -> str:
        return f"<Replicas {len(self.engines)}, {self.leased}/{self.declared} leased>"

    def add(self, engine: ReplicaEngine, usable: float = 1.0) -> None:
        """Add an engine without leases; on another machine, `usable` is the part that its pressure leaves."""
        self.engines[engine.number] = engine
        self.groups.add(engine)
        self.declared += engine.offer.sequences
        for each in self.engines.values() if len(self.engines) == 2 else (engine,):
            self.rank(each)
        if engine.offer.host is None:
            self.here.add(engine.number)
        else:
            self._settle(self.hosts.add(engine.offer.host, engine.number, engine.offer.sequences, usable))

    def remove(self, engine: ReplicaEngine) -> None:
        """Remove an engine and its leases."""
        del self.engines[engine.number]
        self.groups.remove(engine)
        self.declared -= engine.offer.sequences
        self.withheld -= engine.offer.sequences - engine.most
        self.leased -= len(engine.leased)
        if engine.offer.host is None:
            self.here.remove(engine.number)
        else:
            offer, leased = engine.offer, len(engine.leased)
            self._settle(self.hosts.remove(engine.offer.host, engine.number, offer.sequences, leased))

    def press(self, host: str, usable: float) -> None:
        """Let this part of another machine's sequences be leased; running work is never ended for it."""
        if (share := self.hosts.press(host, usable)) is not None:
            self._settle(share)

    def limit(self, engine: ReplicaEngine, usable: float) -> None:
        """Let this part of the sequences of an engine be leased; running work is never ended for it."""
        most, free = engine.most, engine.free
        engine.usable = usable
        self.withheld += most - engine.most
        self._freed(engine, engine.free - free)

    def beside(self, host: str | None) -> set[int]:
        """Return the numbers of the engines on a machine, None for this one."""
        return self.here if host is None else self.hosts.engines(host)

    def lease(self, engine: ReplicaEngine, key: int) -> None:
        """Count a lease of a free sequence."""
        engine.leased.add(key)
        self._count(engine, 1, -1)

    def release(self, engine: ReplicaEngine, key: int) -> None:
        """Count the end of a lease."""
        free = engine.free
        engine.leased.remove(key)
        self._count(engine, -1, engine.free - free)

    def least_burdened(self, request: Request, *, here: bool = True) -> int | None:
        """Return the free engine that gives a request most tokens per second; without `here`, of other machines."""
        if len(self.engines) == 1:
            (engine,) = self.engines.values()
            device = request.spec.device
            return engine.number if engine.free and (device is None or is_on(engine.offer.device, device)) else None
        return self.groups.least_burdened(request, here=here)

    def rank(self, engine: ReplicaEngine) -> None:
        """Rank an engine among several by its leases; among equals the engine with fewer sessions goes first."""
        if len(self.engines) == 1:
            return
        offer, leased = engine.offer, len(engine.leased)
        heap = self.groups.of(offer).by_burden
        if engine.free:
            heap.set(engine.number, (offer.burden(leased), engine.sessions, engine.number))
        else:
            heap.discard(engine.number)

    def _count(self, engine: ReplicaEngine, leases: int, free: int) -> None:
        self.leased += leases
        self._freed(engine, free)
        if engine.offer.host is not None:
            self._settle(self.hosts.lease(engine.offer.host, leases))

    def _freed(self, engine: ReplicaEngine, change: int) -> None:
        self.groups.of(engine.offer).free += change
        self.rank(engine)

    def _settle(self, share: Share) -> None:
        """Shut the engines of a host that has no lease left under its pressure, or open them again."""
        for engine in (self.engines[number] for number in share.engines):
            if engine.shut is not share.shut:
                free = engine.free
                engine.shut = share.shut
                self._freed(engine, engine.free - free)


# Prompts are compared in blocks of 64 tokens.
_BLOCK_BYTES = TOKEN_BYTES * 64
# Blocks remembered for each engine and of all, and engines of a block; the least recently used are forgotten.
_MOST_BLOCKS = 4096
_MOST_BLOCKS_OF_ALL = 65_536  # 20 MiB
_MOST_HOLDERS = 8
# A session has one block at least: of more sessions in one engine some would have no block that is remembered.
_MOST_SESSIONS = _MOST_BLOCKS


def blocks_of(tokens: bytes, namespace: str) -> tuple[int, ...]:
    """Return a hash for each whole block of a prompt: equal if the block and all before it are equal."""
    blocks = []
    number = hash(namespace)
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        number = hash((number, tokens[end - _BLOCK_BYTES : end]))
        blocks.append(number)
    return tuple(blocks)


class Router:
    """Remembers which engine ran which session and prompt; a wrong guess costs one prefill."""

    def __init__(self) -> None:
        self.at_home: Counter[int] = Counter()  # sessions by engine
        self._homes: OrderedDict[tuple[str, Session], int] = OrderedDict()  # a session's last engine, oldest first
        self._engines: set[int] = set()  # that ran a request and live
        self._holders: OrderedDict[int, tuple[int, ...]] = OrderedDict()  # of a block, also dead; oldest use first

    def __repr__(self) -> str:
        return f"<Router {len(self._homes)} sessions, {len(self._holders)} blocks>"

    def home(self, request: Request) -> int | None:
        """Return the engine that ran a request's session last."""
        session = request.spec.session
        return None if session is None else self._homes.get((request.model, session))

    def holder(self, request: Request, is_free: Callable[[int], bool]) -> int | None:
        """Return the free engine that has most blocks of a prompt; the latest of several."""
        blocks = reversed(request.prompt.blocks)
        holders = (engine for block in blocks for engine in reversed(self._holders.get(block, ())))
        return next((engine for engine in holders if is_free(engine)), None)

    def started(self, request: Request, engine: int) -> list[int]:
        """Remember a request's engine; return the engines whose number of sessions changed."""
        self._engines.add(engine)
        # Other prompts begin with the first blocks of a prompt too: these are forgotten last.
        for block in reversed(request.prompt.blocks):
            self._hold(block, engine)
        while len(self._holders) > min(_MOST_BLOCKS * len(self._engines), _MOST_BLOCKS_OF_ALL):
            self._holders.popitem(last=False)
        session = request.spec.session
        return [] if session is None else self._settle((request.model, session), engine)

    def withdraw(self, engine: int) -> None:
        """Forget a dead engine; its number is never another's."""
        self._engines.discard(engine)
        if self.at_home.pop(engine, 0):
            for settled in [settled for settled, home in self._homes.items() if home == engine]:
                del self._homes[settled]

    def _hold(self, block: int, engine: int) -> None:
        others = [each for each in self._holders.get(block, ()) if each != engine]
        self._holders[block] = (*others[1 - _MOST_HOLDERS :], engine)
        self._holders.move_to_end(block)

    def _settle(self, session: tuple[str, Session], engine: int) -> list[int]:
        changed = [engine]
        self.at_home[engine] += 1
        if session in self._homes:
            changed.append(self._homes[session])
            self.at_home[self._homes[session]] -= 1
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _MOST_SESSIONS:
            _, left = self._homes.popitem(last=False)
            self.at_home[left] -= 1
            changed.append(left)
        return changed
