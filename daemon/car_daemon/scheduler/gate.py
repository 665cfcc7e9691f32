"""The one gate: leases of the sequences that engines declared, under the limit of the machine."""

from msgspec import Struct, field

from car_daemon.devices import is_on
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.router import Place, Router
from car_protocol.capacity import Pressure

# What pressure leaves of the sequences; running work is never ended for it.
_LEFT: dict[Pressure, float] = {"none": 1.0, "some": 0.75, "critical": 0.5}


class Offer(Struct, frozen=True):
    """What an engine offers: so many sequences of one model, of so many tokens each, on one device."""

    model: str
    sequences: int
    device: str = "cpu"
    context_tokens: int = 2**31


class _Engine(Struct):
    """One engine: what it declared, the keys of the requests that hold a lease, whether it takes nothing new."""

    offer: Offer
    leased: set[int] = field(default_factory=set)
    closed: bool = False

    @property
    def free(self) -> int:
        return max(0, self.offer.sequences - len(self.leased))


class Gate:
    """Counts leases; nothing else in the system limits how much runs at once."""

    def __init__(self, machine_limit: int | None = None) -> None:
        self.machine_limit = machine_limit
        self._router = Router()
        # Mutable state: how short memory is, how often a lease or an engine came or went, and every engine that is up,
        # by its number and by its model.
        self.pressure: Pressure = "none"
        self.changes = 0
        self._engines: dict[int, _Engine] = {}
        self._models: dict[str, dict[int, _Engine]] = {}

    @property
    def in_use(self) -> int:
        """Sequences leased, over all engines."""
        return sum(len(engine.leased) for engine in self._engines.values())

    @property
    def exhausted(self) -> bool:
        """Whether no model has a sequence to give."""
        return not any(self.available(engine.offer.model) for engine in self._engines.values())

    def declare(self, engine: int, offer: Offer) -> None:
        """Count the sequences of an engine that became ready."""
        self.changes += 1
        self._engines[engine] = self._models.setdefault(offer.model, {})[engine] = _Engine(offer)

    def close(self, model: str) -> None:
        """Have the engines of a model that are up given nothing new to prepare."""
        for engine in self._of(model).values():
            engine.closed = True

    def withdraw(self, engine: int) -> None:
        """Forget an engine that is gone, with its leases."""
        self.changes += 1
        if gone := self._engines.pop(engine, None):
            del self._models[gone.offer.model][engine]
        self._router.withdraw(engine)

    def try_lease(self, request: Request) -> int | None:
        """Lease a sequence of the request's model; return its engine, or None where none is free that suits it."""
        if self.available(request.model) <= 0:
            return None
        engines = self._of(request.model)
        places = [
            Place(number, len(engine.leased) / engine.offer.sequences)
            for number, engine in engines.items()
            if engine.free and self.suits(request, number)
        ]
        if not places:
            return None
        chosen = self._router.choose(request, places)
        if len(engines) > 1:
            self._router.started(request, chosen)
        self.changes += 1
        self._engines[chosen].leased.add(request.key)
        return chosen

    def suits(self, request: Request, engine: int) -> bool:
        """Tell whether a request may run on an engine: what is parked goes on where its cells are."""
        if request.state is State.PARKED:
            return request.engine == engine
        offer = self._engines[engine].offer
        return is_on(offer.device, request.device) and self._holds(offer, request)

    def kept_free(self, waiter: Request) -> int:
        """Return how many free sequences nothing but the limit over all models keeps from requests like this one."""
        if self.machine_limit != self.in_use:
            return 0
        free = sum(engine.free for number, engine in self._of(waiter.model).items() if self.suits(waiter, number))
        return min(free, self.capacity(waiter.model) - self.leased(waiter.model))

    def serves(self, request: Request) -> bool:
        """Tell whether a request may run on an engine that is up, now or later."""
        return any(self.suits(request, number) for number in self._of(request.model))

    def release(self, engine: int, key: int) -> None:
        """Return a lease; one that is not held, or whose engine is gone, is no error."""
        self.changes += 1
        if engine in self._engines:
            self._engines[engine].leased.discard(key)

    def engine_of(self, model: str) -> int | None:
        """Return the engine that prepares a model's requests, for the shortest context; None while none does."""
        numbers = [number for number, engine in self._of(model).items() if not engine.closed]
        return min(numbers, key=self._preparing_rank, default=None)

    def replicas(self, model: str) -> int:
        """Return how many engines of a model are up."""
        return len(self._of(model))

    def leased_keys(self) -> list[int]:
        """Return the keys of the requests that hold a lease."""
        return [key for engine in self._engines.values() for key in engine.leased]

    def busy_engines(self) -> list[int]:
        """Return the engines of which a sequence is leased."""
        return [number for number, engine in self._engines.items() if engine.leased]

    def declared(self, model: str) -> int | None:
        """Return the sequences that the model's engines declared; None while none is up."""
        declared = [engine.offer.sequences for engine in self._of(model).values()]
        return sum(declared) if declared else None

    def leased(self, model: str) -> int:
        """Return how many of the model's sequences are leased."""
        return sum(len(engine.leased) for engine in self._of(model).values())

    def capacity(self, model: str) -> int:
        """Return how many requests of the model may run at once now; 1 while no engine is up."""
        declared = self.declared(model) or 1
        limited = declared if self.machine_limit is None else min(declared, self.machine_limit)
        return max(1, int(limited * _LEFT[self.pressure]))

    def available(self, model: str, device: str | None = None) -> int:
        """Return how many more requests of the model would get a lease now, on one device or on any."""
        engines = self._of(model).values()
        on_device = sum(engine.free for engine in engines if is_on(engine.offer.device, device))
        free = min(on_device, self.capacity(model) - self.leased(model))
        if self.machine_limit is not None:
            free = min(free, self.machine_limit - self.in_use)
        return max(0, free)

    def _holds(self, offer: Offer, request: Request) -> bool:
        """Tell whether a request fits an engine's sequences, or none of its model has longer ones where it may run."""
        if request.prompt_tokens + request.max_tokens <= offer.context_tokens:
            return True
        others = [engine.offer for engine in self._of(offer.model).values()]
        longest = max(other.context_tokens for other in others if is_on(other.device, request.device))
        return offer.context_tokens == longest

    def _of(self, model: str) -> dict[int, _Engine]:
        return self._models.get(model, {})

    def _preparing_rank(self, number: int) -> tuple[int, int, int]:
        engine = self._engines[number]
        return engine.offer.context_tokens, len(engine.leased), -number
