"""The circuit: how many deaths open it, and how it closes again."""

from car_daemon.models.circuit import Circuit, CircuitLimits


def lives(circuit: Circuit, times: list[float]) -> list[bool]:
    """Let an engine become ready and die at each of these times; return whether the circuit was open then."""
    opened = []
    for time in times:
        circuit.ready()
        opened.append(circuit.died(time))
    return opened


def test_the_sixth_death_in_thirty_seconds_opens_it() -> None:
    assert lives(Circuit(CircuitLimits()), [0, 6, 12, 18, 24, 30]) == [False] * 5 + [True]


def test_deaths_that_are_further_apart_do_not() -> None:
    assert not any(lives(Circuit(CircuitLimits()), [6.1 * number for number in range(50)]))


def test_six_deaths_before_ready_open_it_however_long_they_take() -> None:
    circuit = Circuit(CircuitLimits())
    assert [circuit.died(100.0 * number) for number in range(6)] == [False] * 5 + [True]


def test_a_trial_that_dies_opens_it_again_at_once() -> None:
    circuit = Circuit(CircuitLimits())
    lives(circuit, [0, 1, 2, 3, 4, 5])
    circuit.try_again()
    assert circuit.died(40)


def test_a_trial_that_succeeds_closes_it() -> None:
    circuit = Circuit(CircuitLimits())
    lives(circuit, [0, 1, 2, 3, 4, 5])
    circuit.try_again()
    assert lives(circuit, [35, 36, 37, 38, 39, 40]) == [False] * 5 + [True]
