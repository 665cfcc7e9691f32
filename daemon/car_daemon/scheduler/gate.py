"""The one gate: leases of the sequences that engines declared, under the limit of the machine."""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from car_daemon.scheduler.replicas import EngineOffer, ReplicaEngine, Replicas, Router
from car_daemon.scheduler.request import Decisions, Request, State
from car_protocol.capacity import Pressure

# The part of the declared sequences that may be leased under pressure; running work is never ended for it.
_USABLE: dict[Pressure, float] = {"none": 1.0, "some": 0.75, "critical": 0.5}


class Occupancy(Struct, frozen=True):
    """A model's declared, leased and free sequences, and the leased sequences of the machine."""

    declared: int | None  # None while no engine is up
    capacity: int
    leased: int
    available: int  # free, but for the limit of the machine
    machine_leased: int  # on this machine alone, as is its limit


class Gate:
    """Counts leases; nothing else in the system limits how many requests run at once."""

    def __init__(self, machine_limit: int | None = None, decisions: Decisions | None = None) -> None:
        self.machine_limit = machine_limit
        self.pressure: Pressure = "none"  # of this machine
        self.in_use = 0  # sequences leased, over all engines
        self._in_use_away = 0  # of them, on other machines
        self._pressures: dict[str, Pressure] = {}  # of the other machines that have engines
        self.busy_changes = 0  # changes of the engines that have leases, and engines that came or went, ever
        self._router = Router()
        self._decisions = decisions or Decisions()
        self._engines: dict[int, ReplicaEngine] = {}  # by number
        self._busy: dict[int, None] = {}  # the engines with leases
        self._models: dict[str, Replicas] = {}

    def __repr__(self) -> str:
        engines = (
            f"{number}:{engine.offer.model} {len(engine.leased)}/{engine.offer.sequences}"
            for number, engine in self._engines.items()
        )
        return (
            f"<Gate {self.in_use} leased, limit {self.machine_limit}, pressure {self.pressure}, {', '.join(engines)}>"
        )

    @property
    def spread(self) -> bool:
        """True if other machines have engines."""
        return bool(self._pressures)

    @property
    def hosts(self) -> Collection[str]:
        """The other machines that have engines."""
        return self._pressures.keys()

    @property
    def exhausted(self) -> bool:
        """True if the limit of the machine leaves no lease for any model, and no other machine has an engine."""
        return not self.spread and self.machine_limit is not None and self.in_use >= self.machine_limit

    def declare(self, number: int, offer: EngineOffer) -> None:
        """Count the sequences of an engine that became ready."""
        if number in self._engines:
            self._remove(self._engines[number])
        self.busy_changes += 1
        engine = self._engines[number] = ReplicaEngine(number, offer, self._router.at_home[number])
        model = self._models.get(offer.model)
        if model is None:
            model = self._models[offer.model] = Replicas()
        if offer.host is None:
            model.add(engine)
        else:
            model.add(engine, _USABLE[self._pressures.setdefault(offer.host, "none")])

    @property
    def short_hosts(self) -> list[str | None]:
        """The machines under memory pressure, None for this one."""
        levels = [(None, self.pressure), *self._pressures.items()]
        return [host for host, level in levels if level != "none"]

    def press(self, host: str, level: Pressure) -> None:
        """Lease less of another machine that has an engine, or all of it again."""
        if host in self._pressures:
            self._pressures[host] = level
            for replicas in self._models.values():
                replicas.press(host, _USABLE[level])

    def press_engines(self, levels: Mapping[int, Pressure]) -> bool:
        """Lease less of engines of this machine whose GPUs are short of memory; return whether any changed.

        Engines without a level have all of their sequences again.
        """
        changed = False
        for number, engine in self._engines.items():
            usable = _USABLE[levels.get(number, "none")]
            if engine.offer.host is None and engine.usable != usable:
                self._models[engine.offer.model].limit(engine, usable)
                changed = True
        return changed

    def close(self, model: str) -> None:
        """Let the engines of a model that are up prepare no new requests."""
        if (replicas := self._models.get(model)) is not None:
            replicas.groups.close()

    def withdraw(self, number: int) -> None:
        """Forget a dead engine and its leases."""
        self.busy_changes += 1
        if (engine := self._engines.pop(number, None)) is not None:
            self._remove(engine)
            self._forget(engine.offer.host)
        self._router.withdraw(number)

    def try_lease(self, request: Request) -> int | None:
        """Lease a sequence for a request; return its engine, or None while no suitable one is free."""
        if self.available(request.model) <= 0:
            return None
        replicas = self._models[request.model]
        number = self._choose(request, replicas)
        if number is None:
            return None
        engine = self._engines[number]
        if not engine.leased:
            self._busy[number] = None
            self.busy_changes += 1
        self._count(engine, 1)
        replicas.lease(engine, request.key)
        if len(replicas.engines) > 1:
            for changed in self._router.started(request, number):
                if (other := self._engines.get(changed)) is not None:
                    other.sessions = self._router.at_home[changed]
                    self._models[other.offer.model].rank(other)
        return number

    def release(self, number: int, key: int) -> str | None:
        """Return a lease; return its model, or None for a second return and for one of a dead engine."""
        engine = self._engines.get(number)
        if engine is None or key not in engine.leased:
            return None
        self._count(engine, -1)
        self._models[engine.offer.model].release(engine, key)
        if not engine.leased:
            del self._busy[number]
            self.busy_changes += 1
        return engine.offer.model

    def opened(self, number: int) -> Iterator[tuple[str, Collection[int]]]:
        """Yield each model whose requests may find a sequence once an engine's lease ended, with its engines.

        Under memory pressure these are all the model's engines on the machine, because it kept each engine shut.
        """
        offer = self._engines[number].offer
        if offer.host is None and self.spread and self.machine_limit is not None:
            # Because the limit of this machine, which keeps any model's requests away, does not end the search for
            # leases where others have engines.
            yield from ((name, replicas.here) for name, replicas in self._models.items())
        else:
            replicas = self._models[offer.model]
            pressed = self.pressure != "none" if offer.host is None else self._pressures[offer.host] != "none"
            yield offer.model, replicas.beside(offer.host) if pressed else (number,)

    def suits(self, request: Request, number: int) -> bool:
        """Return True if a request may run on an engine: a parked one only on the engine with its cells."""
        if request.state is State.PARKED:
            return request.engine == number
        engine = self._engines.get(number)
        return engine is not None and self._models[engine.offer.model].groups.suit(request, engine.offer)

    def serves(self, model: str, device: str | None) -> bool:
        """Return True if an engine is up that may run a model's requests for a device, now or later."""
        replicas = self._models.get(model)
        return replicas is not None and replicas.groups.serve(device)

    def kept_free(self, waiter: Request) -> int:
        """Return the free sequences that suit a request and that only the limit of the machine keeps from it."""
        replicas = self._models.get(waiter.model)
        if replicas is None or self.machine_limit is None or self.machine_limit != self._in_use_here:
            return 0
        away = replicas.hosts
        open_here = self._capacity(replicas.declared - away.declared or 1) - (replicas.leased - away.leased)
        return min(replicas.groups.free_for(waiter), open_here)

    def engine_of(self, model: str, device: str | None = None) -> int | None:
        """Return the engine that prepares a model's requests for a device; None while none is open."""
        replicas = self._models.get(model)
        return None if replicas is None else replicas.groups.preparer(device)

    def leased_keys(self, number: int) -> Collection[int]:
        """Return the keys of the requests with a lease of an engine."""
        engine = self._engines.get(number)
        return () if engine is None else engine.leased

    def model_of(self, number: int) -> str | None:
        """Return the model of an engine that is up."""
        engine = self._engines.get(number)
        return None if engine is None else engine.offer.model

    def is_here(self, number: int) -> bool:
        """Return True if an engine is up on this machine, whose limit counts its leases."""
        engine = self._engines.get(number)
        return engine is not None and engine.offer.host is None

    def prompt_share(self, number: int) -> float:
        """Return what a prompt token costs an engine, in answer tokens."""
        return self._engines[number].offer.prompt_share

    def context_tokens(self, number: int) -> int:
        """Return the context of an engine's sequences."""
        return self._engines[number].offer.context_tokens

    def replicas(self, model: str) -> int:
        """Return the number of a model's engines that are up."""
        return len(self._models[model].engines) if model in self._models else 0

    def busy_engines(self) -> list[int]:
        """Return the engines with at least one lease."""
        return list(self._busy)

    def occupancy(self, model: str) -> Occupancy:
        """Return a model's figures for its capacity object."""
        replicas = self._models.get(model)
        if replicas is None:
            return Occupancy(None, self._capacity(1), 0, self._capacity(1), self._in_use_here)
        capacity, leased, away = self._capacity_of(replicas), replicas.leased, replicas.hosts
        # Because a pressed machine may run more than it may begin, which takes nothing from the others.
        free = max(0, capacity - away.most - (leased - away.leased)) + away.free
        return Occupancy(replicas.declared or None, capacity, leased, free, self._in_use_here)

    def capacity(self, model: str) -> int:
        """Return the most requests of a model that may run at once now; 1 while no engine is up."""
        replicas = self._models.get(model)
        return self._capacity(1) if replicas is None else self._capacity_of(replicas)

    def _capacity_of(self, replicas: Replicas) -> int:
        away = replicas.hosts
        here = self._capacity_here(replicas) if replicas.declared > away.declared or not away.declared else 0
        return here + away.most

    def _capacity_here(self, replicas: Replicas) -> int:
        """Return the most requests of a model that may run at once on this machine, under all its pressure."""
        declared = replicas.declared - replicas.hosts.declared
        return min(self._capacity(declared or 1), max(1, declared - replicas.withheld))

    def available(self, model: str, device: str | None = None) -> int:
        """Return the leases of a model that are free now, on one device or on any."""
        replicas = self._models.get(model)
        if replicas is None:
            return 0
        here = self._free_here(replicas, device)
        if not replicas.hosts.declared:
            return here
        away = replicas.hosts.free
        return here + (away if device is None else min(away, replicas.groups.free_on(device, here=False)))

    def _free_here(self, replicas: Replicas, device: str | None = None) -> int:
        """Return the leases of a model that are free on this machine."""
        leased = replicas.leased - replicas.hosts.leased
        if device is None and not replicas.withheld:
            free = replicas.declared - replicas.hosts.declared - leased
        else:
            free = replicas.groups.free_on(device, here=True)
        if free > 0:
            free = min(free, self._capacity(replicas.declared - replicas.hosts.declared) - leased)
            if self.machine_limit is not None:
                free = min(free, self.machine_limit - self._in_use_here)
        return max(0, free)

    def _choose(self, request: Request, replicas: Replicas) -> int | None:
        """Return a free engine: the one with its cells, its images, its session's, most of its prompt, the fastest."""
        here = not replicas.hosts.declared or self._free_here(replicas) > 0

        def is_open(engine: ReplicaEngine | None) -> bool:
            return engine is not None and engine.free > 0 and (here or engine.offer.host is not None)

        if request.state is State.PARKED:
            parked = None if request.engine is None else self._engines.get(request.engine)
            return request.engine if is_open(parked) else None
        if len(replicas.engines) == 1:
            return replicas.least_burdened(request)

        def is_free(number: int) -> bool:
            engine = replicas.engines.get(number)
            return is_open(engine) and engine is not None and replicas.groups.suit(request, engine.offer)

        if request.images_at is not None and is_free(request.images_at):
            return request.images_at
        number, why = self._router.home(request), "it ran the session"
        if number is None or not is_free(number):
            number, why = self._router.holder(request, is_free), "it has most of the prompt"
        if number is None:
            number, why = replicas.least_burdened(request, here=here), "the fastest of those with a free sequence"
        if number is not None and self._decisions.sink is not None:
            self._decisions.sink("route", request, f"engine {number}: {why}")
        return number

    @property
    def _in_use_here(self) -> int:
        return self.in_use - self._in_use_away

    def _count(self, engine: ReplicaEngine, change: int) -> None:
        self.in_use += change
        if engine.offer.host is not None:
            self._in_use_away += change

    def _forget(self, host: str | None) -> None:
        """Forget the pressure of a machine without engines."""
        if host is not None and all(engine.offer.host != host for engine in self._engines.values()):
            del self._pressures[host]

    def _remove(self, engine: ReplicaEngine) -> None:
        self._count(engine, -len(engine.leased))
        self._busy.pop(engine.number, None)
        replicas = self._models[engine.offer.model]
        replicas.remove(engine)
        if not replicas.engines:
            del self._models[engine.offer.model]

    def _capacity(self, declared: int) -> int:
        limited = declared if self.machine_limit is None else min(declared, self.machine_limit)
        return max(1, int(limited * _USABLE[self.pressure]))
