"""Random walks of a gate over hosts that come, go, are lost and run short of memory, beside a plain count of leases."""

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import Struct, field

from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Prompt, Request, RequestSpec
from car_protocol.capacity import Pressure

HOSTS = ("n1", "n2", "n3")
MODELS = ("a", "b")
USABLE: dict[Pressure, float] = {"none": 1.0, "some": 0.75, "critical": 0.5}
CHOICES = st.integers(0, 2**16)


class Engine(Struct, eq=False):
    """An engine that is up, with its leases."""

    number: int
    model: str
    host: str | None
    sequences: int
    keys: set[int] = field(default_factory=set)


class HostWalk(RuleBasedStateMachine):
    """One rule for every event of a gate; the plain count is the expectation."""

    most_engines: ClassVar[int] = 6

    @initialize(limit=st.none() | st.integers(1, 3))
    def begin(self, limit: int | None) -> None:
        self.gate = Gate(limit)
        self.engines: dict[int, Engine] = {}
        self.gone: list[tuple[int, int]] = []  # leases that ended, or whose engine is gone: engine and key
        self.pressures: dict[str, Pressure] = {}
        self.numbers = 0
        self.keys = 0

    def up(self, model: str | None = None, host: str | None = "any") -> list[Engine]:
        """Return the engines that are up, of one model and host or of all."""
        engines = self.engines.values()
        return [each for each in engines if model in (None, each.model) and host in ("any", each.host)]

    def most(self, model: str, host: str | None) -> int:
        """Return the leases that a machine may have of a model."""
        declared = sum(each.sequences for each in self.up(model, host))
        if host is not None:
            return max(1, int(declared * USABLE[self.pressures[host]])) if declared else 0
        limit = self.gate.machine_limit
        return declared if limit is None else min(declared, limit)

    def free(self, model: str, host: str | None) -> int:
        """Return the leases that a machine may give away now."""
        free = self.most(model, host) - sum(len(each.keys) for each in self.up(model, host))
        if host is None and self.gate.machine_limit is not None:
            free = min(free, self.gate.machine_limit - sum(len(each.keys) for each in self.up(None, None)))
        return max(0, free)

    # Hosts.

    @rule(host=st.sampled_from([None, *HOSTS]), model=st.sampled_from(MODELS), sequences=st.integers(1, 4))
    def engine_starts(self, host: str | None, model: str, sequences: int) -> None:
        if len(self.engines) >= self.most_engines:
            return
        self.numbers += 1
        if host is not None:
            self.pressures.setdefault(host, "none")
        self.engines[self.numbers] = Engine(self.numbers, model, host, sequences)
        rates = tuple(float(sequences + running) for running in range(sequences))
        self.gate.declare(self.numbers, EngineOffer(model, sequences, rates=rates, host=host))

    @rule(choice=CHOICES)
    def engine_dies(self, choice: int) -> None:
        if self.engines:
            self.lose(list(self.engines.values())[choice % len(self.engines)])

    @rule(host=st.sampled_from(HOSTS))
    def host_is_lost(self, host: str) -> None:
        for engine in self.up(None, host):
            self.lose(engine)
        assert host not in self.gate.hosts

    @rule(host=st.sampled_from(HOSTS), level=st.sampled_from(list(USABLE)))
    def host_is_pressed(self, host: str, level: Pressure) -> None:
        self.gate.press(host, level)
        if host in self.pressures:
            self.pressures[host] = level

    def lose(self, engine: Engine) -> None:
        del self.engines[engine.number]
        self.gone += [(engine.number, key) for key in sorted(engine.keys)]
        self.gate.withdraw(engine.number)
        if engine.host is not None and not self.up(None, engine.host):
            del self.pressures[engine.host]

    # Leases.

    @rule(model=st.sampled_from(MODELS), session=st.integers(0, 3), blocks=st.integers(0, 3))
    def request_comes(self, model: str, session: int, blocks: int) -> None:
        self.keys += 1
        name = (0, str(session)) if session else None
        request = Request(RequestSpec(key=self.keys, model=model, arrived=0.0, session=name))
        request.prompt = Prompt(10, 8, tuple(range(blocks)))
        before = {host: self.free(model, host) for host in (None, *HOSTS)}
        number = self.gate.try_lease(request)
        if number is None:
            assert not any(before.values())
            return
        engine = self.engines[number]
        assert engine.model == model
        assert before[engine.host] > 0
        assert len(engine.keys) < engine.sequences
        engine.keys.add(self.keys)

    @rule(choice=CHOICES)
    def lease_ends(self, choice: int) -> None:
        leases = [(engine, key) for engine in self.engines.values() for key in sorted(engine.keys)]
        if leases:
            engine, key = leases[choice % len(leases)]
            engine.keys.remove(key)
            self.gone.append((engine.number, key))
            assert self.gate.release(engine.number, key) == engine.model

    @rule(choice=CHOICES)
    def a_lease_that_ended_is_returned_again(self, choice: int) -> None:
        if self.gone:
            assert self.gate.release(*self.gone[choice % len(self.gone)]) is None

    # What holds after each event.

    @invariant()
    def leases_are_counted_once(self) -> None:
        for model in MODELS:
            assert self.gate.leased(model) == sum(len(each.keys) for each in self.up(model))
        assert self.gate.in_use == sum(len(each.keys) for each in self.up())
        assert self.gate.busy_engines() or not self.gate.in_use

    @invariant()
    def capacity_and_free_leases_are_the_sums_over_hosts(self) -> None:
        for model in MODELS:
            assert self.gate.capacity(model) == max(1, sum(self.most(model, host) for host in (None, *HOSTS)))
            assert self.gate.available(model) == sum(self.free(model, host) for host in (None, *HOSTS))

    @invariant()
    def hosts_are_those_with_an_engine(self) -> None:
        assert set(self.gate.hosts) == {each.host for each in self.up() if each.host is not None}

    def teardown(self) -> None:
        """With every host lost, no lease and no host is left, and a host that is back starts without any."""
        if not hasattr(self, "gate"):
            return
        for engine in self.up():
            self.lose(engine)
        assert (self.gate.in_use, len(self.gate.hosts), self.gate.busy_engines()) == (0, 0, [])
        for model in MODELS:
            assert (self.gate.available(model), self.gate.capacity(model)) == (0, 1)
        self.engine_starts("n1", "a", 4)
        assert self.gate.available("a") == 4


HostWalk.TestCase.settings = settings(derandomize=True, max_examples=60, stateful_step_count=40)
TestHostWalk = HostWalk.TestCase
