"""Leases, per engine and under the limit of the machine."""

import pytest

from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec


def request(key: int, model: str = "m") -> Request:
    return Request(RequestSpec(key=key, model=model, arrived=0.0))


def gate_with(*engines: tuple[int, str, int], limit: int | None = None) -> Gate:
    gate = Gate(limit)
    for number, model, sequences in engines:
        gate.declare(number, EngineOffer(model, sequences))
    return gate


def test_no_lease_is_given_while_no_engine_of_the_model_is_up() -> None:
    gate = gate_with((1, "other", 4))
    assert gate.try_lease(request(1)) is None
    assert gate.available("m") == 0
    assert gate.occupancy("m").declared is None


def test_capacity_is_one_while_no_engine_is_up() -> None:
    assert gate_with().capacity("m") == 1


def test_available_counts_down_from_two_to_none() -> None:
    gate = gate_with((1, "m", 2))
    seen = [gate.available("m")]
    for key in (1, 2):
        assert gate.try_lease(request(key)) == 1
        seen.append(gate.available("m"))
    assert seen == [2, 1, 0]
    assert gate.try_lease(request(3)) is None


def test_a_released_lease_is_free_again() -> None:
    gate = gate_with((1, "m", 1))
    gate.try_lease(request(1))
    gate.release(1, 1)
    assert gate.available("m") == 1
    assert gate.try_lease(request(2)) == 1


def test_releasing_what_is_not_held_changes_nothing() -> None:
    gate = gate_with((1, "m", 2))
    gate.try_lease(request(1))
    gate.release(1, 99)
    gate.release(7, 1)
    assert gate.in_use == 1


def test_a_lease_that_is_released_twice_frees_one_sequence() -> None:
    gate = gate_with((1, "m", 2))
    gate.try_lease(request(1))
    gate.try_lease(request(2))
    gate.release(1, 1)
    gate.release(1, 1)
    assert gate.available("m") == 1


def test_models_have_their_own_sequences() -> None:
    gate = gate_with((1, "a", 1), (2, "b", 1))
    assert gate.try_lease(request(1, "a")) == 1
    assert gate.try_lease(request(2, "b")) == 2
    assert (gate.occupancy("a").leased, gate.occupancy("b").leased, gate.in_use) == (1, 1, 2)


def test_the_replicas_of_a_model_add_up() -> None:
    gate = gate_with((1, "m", 1), (2, "m", 2))
    assert gate.occupancy("m").declared == 3
    assert sorted(filter(None, (gate.try_lease(request(key)) for key in range(4)))) == [1, 2, 2]


def test_a_withdrawn_engine_takes_its_leases_with_it() -> None:
    gate = gate_with((1, "m", 2))
    gate.try_lease(request(1))
    gate.withdraw(1)
    gate.withdraw(1)
    assert gate.in_use == 0
    assert gate.occupancy("m").declared is None


def test_the_machine_limit_holds_over_all_models() -> None:
    gate = gate_with((1, "a", 4), (2, "b", 4), limit=3)
    leases = [gate.try_lease(request(key, model)) for key, model in enumerate("ababab")]
    assert leases == [1, 2, 1, None, None, None]
    assert gate.available("a") == gate.available("b") == 0


def test_a_machine_limit_of_one_serializes_the_machine() -> None:
    gate = gate_with((1, "a", 4), (2, "b", 4), limit=1)
    assert gate.try_lease(request(1, "a")) == 1
    assert gate.try_lease(request(2, "b")) is None
    gate.release(1, 1)
    assert gate.try_lease(request(2, "b")) == 2


def test_capacity_is_what_was_declared_under_the_machine_limit() -> None:
    assert gate_with((1, "m", 8), limit=3).capacity("m") == 3
    assert gate_with((1, "m", 2), limit=3).capacity("m") == 2
    assert gate_with((1, "m", 8)).capacity("m") == 8


def test_a_limit_that_shrinks_below_what_runs_leaves_nothing_available() -> None:
    gate = gate_with((1, "m", 4))
    for key in range(3):
        gate.try_lease(request(key))
    gate.machine_limit = 2
    assert gate.available("m") == 0
    assert gate.in_use == 3


def test_a_closed_model_keeps_its_leases_and_takes_requests_again_with_its_next_engine() -> None:
    gate = gate_with((1, "a", 2), (2, "b", 1))
    gate.try_lease(request(1, "a"))
    gate.close("a")
    assert (gate.engine_of("a"), gate.engine_of("b")) == (None, 2)
    assert gate.try_lease(request(2, "a")) == 1
    gate.withdraw(1)
    assert gate.engine_of("a") is None
    gate.declare(3, EngineOffer("a", 1))
    assert gate.engine_of("a") == 3


@pytest.mark.parametrize(("level", "capacity"), [("none", 8), ("some", 6), ("critical", 4)])
def test_pressure_lowers_the_one_value_and_ends_nothing(level: str, capacity: int) -> None:
    gate = Gate()
    gate.declare(1, EngineOffer("m", 8))
    for key in range(8):
        assert gate.try_lease(request(key)) == 1
    gate.pressure = level  # type: ignore[assignment]  # the parameters are levels
    assert gate.capacity("m") == capacity
    assert gate.occupancy("m").leased == 8
    gate.release(1, 0)
    assert (gate.try_lease(request(9)) == 1) == (capacity == 8)


def test_capacity_is_never_below_one() -> None:
    gate = Gate()
    gate.declare(1, EngineOffer("m", 1))
    gate.pressure = "critical"
    assert gate.capacity("m") == 1
    assert gate.try_lease(request(1)) == 1


def gate_over(*engines: tuple[int, str, int], here: int = 0, limit: int | None = None) -> Gate:
    """Return a gate with engines by number, host and sequences, and one of this machine."""
    gate = Gate(limit)
    for number, host, sequences in engines:
        gate.declare(number, EngineOffer("m", sequences, host=host))
    if here:
        gate.declare(99, EngineOffer("m", here))
    return gate


def test_capacity_is_the_sum_over_all_machines() -> None:
    assert gate_over((1, "n1", 4), (2, "n2", 8), here=2).capacity("m") == 14


def test_the_limit_of_the_machine_counts_this_machine_alone() -> None:
    gate = gate_over((1, "n1", 4), here=4, limit=1)
    assert gate.capacity("m") == 5
    engines = [gate.try_lease(request(key)) for key in range(6)]
    assert (engines.count(99), engines.count(1), engines.count(None)) == (1, 4, 1)
    assert (gate.in_use, gate.occupancy("m").machine_leased) == (5, 1)


def test_a_host_short_of_memory_gets_less_and_the_others_what_they_had() -> None:
    gate = gate_over((1, "n1", 4), (2, "n2", 4), here=4)
    gate.press("n1", "critical")
    assert gate.capacity("m") == 10
    engines = [gate.try_lease(request(key)) for key in range(12)]
    assert [engines.count(number) for number in (1, 2, 99, None)] == [2, 4, 4, 2]


def test_pressure_here_takes_nothing_from_other_machines() -> None:
    gate = gate_over((1, "n1", 4), here=4)
    gate.pressure = "critical"
    assert gate.capacity("m") == 6


def test_a_host_under_pressure_runs_one_request_at_least_and_ends_none() -> None:
    gate = gate_over((1, "n1", 1), (2, "n2", 4))
    assert all(gate.try_lease(request(key)) for key in range(5))
    gate.press("n1", "critical")
    gate.press("n2", "critical")
    assert (gate.capacity("m"), gate.occupancy("m").leased, gate.available("m")) == (3, 5, 0)


def test_a_host_that_recovers_has_all_of_its_sequences_again() -> None:
    gate = gate_over((1, "n1", 4), (2, "n2", 1))
    gate.press("n1", "critical")
    engines = [gate.try_lease(request(key)) for key in range(4)]
    gate.press("n1", "none")
    assert (engines[3], gate.available("m"), gate.try_lease(request(9))) == (None, 2, 1)


def test_the_pressure_of_a_host_is_forgotten_with_its_last_engine() -> None:
    gate = gate_over((1, "n1", 4))
    gate.press("n1", "critical")
    gate.withdraw(1)
    gate.declare(2, EngineOffer("m", 4, host="n1"))
    assert gate.capacity("m") == 4


def test_a_host_that_runs_more_than_its_memory_allows_hides_no_free_sequence_of_another() -> None:
    gate = gate_over((1, "n1", 2), (2, "n2", 2))
    leases = {key: gate.try_lease(request(key)) for key in range(4)}
    for key in [key for key, engine in leases.items() if engine == 2]:
        gate.release(2, key)
    gate.press("n1", "critical")
    occupancy = gate.occupancy("m")
    assert (occupancy.capacity, occupancy.leased, occupancy.available, gate.available("m")) == (3, 2, 2, 2)


def test_an_engine_whose_gpu_is_short_of_memory_gets_less_and_the_others_what_they_had() -> None:
    gate = gate_with((1, "m", 4), (2, "m", 4), (3, "other", 4))
    assert gate.press_engines({1: "critical"})
    assert [gate.capacity(model) for model in ("m", "other")] == [6, 4]
    engines = [gate.try_lease(request(key)) for key in range(8)]
    assert [engines.count(number) for number in (1, 2, None)] == [2, 4, 2]
    assert not gate.press_engines({1: "critical"})
    assert gate.press_engines({})
    assert (gate.capacity("m"), gate.available("m"), gate.try_lease(request(9))) == (8, 2, 1)


def test_work_that_runs_is_never_ended_for_the_pressure_of_a_gpu_and_one_request_runs_at_least() -> None:
    gate = gate_with((1, "m", 4), (2, "one", 1))
    assert all(gate.try_lease(request(key)) for key in range(4))
    gate.press_engines({1: "critical", 2: "critical"})
    assert (gate.capacity("m"), gate.occupancy("m").leased, gate.available("m")) == (2, 4, 0)
    for key in range(3):
        gate.release(1, key)
    assert (gate.available("m"), gate.try_lease(request(9)), gate.try_lease(request(10))) == (1, 1, None)
    assert gate.try_lease(request(11, "one")) == 2


def test_the_pressure_of_host_and_gpu_is_the_higher_one_and_not_their_product() -> None:
    gate = gate_with((1, "m", 8))
    gate.pressure = "critical"
    gate.press_engines({1: "critical"})
    assert gate.capacity("m") == 4
    gate.pressure = "none"
    gate.press_engines({1: "some"})
    assert gate.capacity("m") == 6


def test_an_engine_under_pressure_that_is_gone_leaves_nothing_withheld() -> None:
    gate = gate_with((1, "m", 4), (2, "m", 2))
    gate.press_engines({1: "critical"})
    gate.withdraw(1)
    assert (gate.capacity("m"), gate.available("m")) == (2, 2)


def test_the_gpus_of_other_machines_are_not_those_of_this_one() -> None:
    gate = gate_over((1, "n1", 4), here=4)
    assert not gate.press_engines({1: "critical"})
    assert gate.capacity("m") == 8
