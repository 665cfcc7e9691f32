"""The engines of one model, with their leases counted as they come and go."""

from collections.abc import Iterable

from msgspec import Struct, field

from car_daemon.host.devices import is_on
from car_daemon.scheduler.fair_queue.lazy_heap import LazyHeap
from car_daemon.scheduler.request import Request
from car_daemon.scheduler.routing.hosts import Hosts, Share


class EngineOffer(Struct, frozen=True):
    """An engine's declaration: sequences of one model, on one device, each of `context_tokens`.

    `rates` are its tokens per second with 1, 2, ... running sequences, empty where they were not measured; a prompt
    token takes as long as `prompt_share` answer tokens. `host` is another machine's name, None on this one.
    """

    model: str
    sequences: int
    device: str = "cpu"
    context_tokens: int = 2**31
    rates: tuple[float, ...] = ()
    prompt_share: float = 1.0
    host: str | None = None

    def burden(self, leased: int) -> float:
        """Return the seconds of a token with one more sequence; the part of its sequences where no rates are known."""
        if not self.rates:
            return (leased + 1) / self.sequences
        return (leased + 1) / self.rates[min(leased, len(self.rates) - 1)]


class Engine(Struct, eq=False):
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
        self.open: dict[int, None] = {}  # the numbers of those that prepare new requests
        self.by_burden: LazyHeap[tuple[float, int, int], int] = LazyHeap()  # engines with a free sequence


class Groups:
    """The engines of one model by device and length of sequences, which decide where a request may run."""

    def __init__(self) -> None:
        self._groups: dict[_Kind, Group] = {}

    def of(self, offer: EngineOffer) -> Group:
        """Return the group of an engine that is in one."""
        return self._groups[_kind(offer)]

    def add(self, engine: Engine) -> None:
        """Count an engine and its free sequences."""
        group = self._groups.setdefault(_kind(engine.offer), Group())
        group.engines += 1
        group.open[engine.number] = None
        group.free += engine.free

    def remove(self, engine: Engine) -> None:
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
    """Return True if a request fits such sequences, or its model has no longer ones where it may run."""
    if request.prompt.tokens + request.prompt.room <= context_tokens:
        return True
    device = request.spec.device
    return context_tokens == max(tokens for place, tokens, _ in kinds if is_on(place, device))


class Replicas:
    """The engines of one model that are up; they are ranked while there are several."""

    def __init__(self) -> None:
        self.engines: dict[int, Engine] = {}  # by number
        self.groups = Groups()  # the same engines
        self.hosts = Hosts()  # those of them on other machines
        self.here: set[int] = set()  # the numbers of those on this machine
        self.declared = 0  # sequences, over all machines
        self.withheld = 0  # of them, under the pressure of GPUs
        self.leased = 0

    def __repr__(self) -> str:
        return f"<Replicas {len(self.engines)}, {self.leased}/{self.declared} leased>"

    def add(self, engine: Engine, usable: float = 1.0) -> None:
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

    def remove(self, engine: Engine) -> None:
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

    def limit(self, engine: Engine, usable: float) -> None:
        """Let this part of the sequences of an engine be leased; running work is never ended for it."""
        most, free = engine.most, engine.free
        engine.usable = usable
        self.withheld += most - engine.most
        self._freed(engine, engine.free - free)

    def beside(self, host: str | None) -> set[int]:
        """Return the numbers of the engines on a machine, None for this one."""
        return self.here if host is None else self.hosts.engines(host)

    def lease(self, engine: Engine, key: int) -> None:
        """Count a lease of a free sequence."""
        free = engine.free
        engine.leased.add(key)
        self._count(engine, 1, engine.free - free)

    def release(self, engine: Engine, key: int) -> None:
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

    def rank(self, engine: Engine) -> None:
        """Rank an engine among several by its leases; of equal ones the one with fewer sessions goes first."""
        if len(self.engines) == 1:
            return
        offer, leased = engine.offer, len(engine.leased)
        heap = self.groups.of(offer).by_burden
        if engine.free:
            heap.set(engine.number, (offer.burden(leased), engine.sessions, engine.number))
        else:
            heap.discard(engine.number)

    def _count(self, engine: Engine, leases: int, free: int) -> None:
        self.leased += leases
        self._freed(engine, free)
        if engine.offer.host is not None:
            self._settle(self.hosts.lease(engine.offer.host, leases))

    def _freed(self, engine: Engine, change: int) -> None:
        self.groups.of(engine.offer).free += change
        self.rank(engine)

    def _settle(self, share: Share) -> None:
        """Shut the engines of a host that has no lease left under its pressure, or open them again."""
        for engine in (self.engines[number] for number in share.engines):
            if engine.shut is not share.shut:
                free = engine.free
                engine.shut = share.shut
                self._freed(engine, engine.free - free)
