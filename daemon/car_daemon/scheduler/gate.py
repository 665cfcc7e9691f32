"""The one gate: leases of the sequences that engines declared, under the limit of the machine."""

from msgspec import Struct, field

from car_daemon.scheduler.request import Request
from car_protocol.capacity import Pressure

# What pressure leaves of the sequences; running work is never ended for it.
_LEFT: dict[Pressure, float] = {"none": 1.0, "some": 0.75, "critical": 0.5}


class _Sequences(Struct):
    """One engine's sequences: its model, how many it declared, the keys of the requests that hold one."""

    model: str
    declared: int
    leased: set[int] = field(default_factory=set)


class Gate:
    """Counts leases; nothing else in the system limits how much runs at once."""

    def __init__(self, machine_limit: int | None = None) -> None:
        self.machine_limit = machine_limit
        # Mutable state: how short memory is, the sequences of every engine that is up, by the engine's number,
        # and the models whose engines take nothing new.
        self.pressure: Pressure = "none"
        self._engines: dict[int, _Sequences] = {}
        self._closed: set[str] = set()

    @property
    def in_use(self) -> int:
        """Sequences leased, over all engines."""
        return sum(len(engine.leased) for engine in self._engines.values())

    def declare(self, engine: int, model: str, sequences: int) -> None:
        """Count the sequences of an engine that became ready."""
        self._closed.discard(model)
        self._engines[engine] = _Sequences(model, sequences)

    def close(self, model: str) -> None:
        """Have a model's engine given nothing new, until another one is declared."""
        self._closed.add(model)

    def withdraw(self, engine: int) -> None:
        """Forget an engine that is gone, with its leases."""
        self._engines.pop(engine, None)

    def try_lease(self, request: Request) -> int | None:
        """Lease a sequence of the request's model; return its engine, or None where none is free."""
        if self.available(request.model) <= 0:
            return None
        for number, engine in self._engines.items():
            if engine.model == request.model and len(engine.leased) < engine.declared:
                engine.leased.add(request.key)
                return number
        return None

    def release(self, engine: int, key: int) -> None:
        """Return a lease; one that is not held, or whose engine is gone, is no error."""
        if engine in self._engines:
            self._engines[engine].leased.discard(key)

    def engine_of(self, model: str) -> int | None:
        """Return the engine that takes a model's requests; None while none does."""
        if model in self._closed:
            return None
        numbers = [number for number, engine in self._engines.items() if engine.model == model]
        return numbers[-1] if numbers else None

    def full_models(self) -> set[str]:
        """Return the models whose engines have no sequence to give."""
        return {engine.model for engine in self._engines.values() if self.available(engine.model) <= 0}

    def leased_keys(self) -> list[int]:
        """Return the keys of the requests that hold a lease."""
        return [key for engine in self._engines.values() for key in engine.leased]

    def declared(self, model: str) -> int | None:
        """Return the sequences that the model's engines declared; None while none is up."""
        declared = [engine.declared for engine in self._engines.values() if engine.model == model]
        return sum(declared) if declared else None

    def leased(self, model: str) -> int:
        """Return how many of the model's sequences are leased."""
        return sum(len(engine.leased) for engine in self._engines.values() if engine.model == model)

    def capacity(self, model: str) -> int:
        """Return how many requests of the model may run at once now; 1 while no engine is up."""
        declared = self.declared(model) or 1
        limited = declared if self.machine_limit is None else min(declared, self.machine_limit)
        return max(1, int(limited * _LEFT[self.pressure]))

    def available(self, model: str) -> int:
        """Return how many more requests of the model would get a lease now."""
        declared = self.declared(model)
        if declared is None:
            return 0
        free = min(declared, self.capacity(model)) - self.leased(model)
        if self.machine_limit is not None:
            free = min(free, self.machine_limit - self.in_use)
        return max(0, free)
