"""The circuit: how many deaths open it, and how it closes again."""

from car_daemon.engines.restart_policy import CircuitBreaker, CircuitLimits


def lives(circuit: CircuitBreaker, times: list[float]) -> list[bool]:
    """Let an engine become ready and die at each of these times; return whether the circuit was open then."""
    opened = []
    for time in times:
        circuit.ready()
        opened.append(circuit.died(time) is not None)
    return opened


def test_the_sixth_death_in_thirty_seconds_opens_it() -> None:
    assert lives(CircuitBreaker(CircuitLimits()), [0, 6, 12, 18, 24, 30]) == [False] * 5 + [True]


def test_deaths_that_are_further_apart_do_not() -> None:
    assert not any(lives(CircuitBreaker(CircuitLimits()), [6.1 * number for number in range(50)]))


def test_six_deaths_before_ready_open_it_however_long_they_take() -> None:
    circuit = CircuitBreaker(CircuitLimits())
    assert [circuit.died(100.0 * number) is not None for number in range(6)] == [False] * 5 + [True]


def test_a_trial_that_dies_opens_it_again_at_once() -> None:
    circuit = CircuitBreaker(CircuitLimits())
    lives(circuit, [0, 1, 2, 3, 4, 5])
    circuit.try_again()
    assert circuit.died(40) is not None


def test_a_trial_that_succeeds_closes_it() -> None:
    circuit = CircuitBreaker(CircuitLimits())
    lives(circuit, [0, 1, 2, 3, 4, 5])
    circuit.try_again()
    assert lives(circuit, [35, 36, 37, 38, 39, 40]) == [False] * 5 + [True]


def test_the_reason_has_the_figures_of_the_limit_that_was_reached() -> None:
    served = CircuitBreaker(CircuitLimits(deaths=2, window_s=5.0))
    for now in (0.0, 1.0):
        served.ready()
        reason = served.died(now)
    assert reason == "the engine died 2 times within 5 s"
    never = CircuitBreaker(CircuitLimits(deaths=2))
    assert (never.died(0.0), never.died(1.0)) == (None, "the engine died 2 times before the model was loaded")
    never.try_again()
    assert never.died(2.0) == "the engine died again before the model was loaded, 30 s after the circuit opened"
