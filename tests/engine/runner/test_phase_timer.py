"""Seconds of an engine by phase."""

from car_engine.runner.stepper import PhaseTimer
from tests.engine.fakes import FakeContext, FakeEngine, run_command
from tests.pace import SetClock


def test_every_interval_counts_for_its_phase_and_a_pause_for_none() -> None:
    clock = SetClock(tick=1.0)
    phases = PhaseTimer(clock)
    phases.begin()
    assert phases.end("fill") == 3.0
    phases.end("decode")
    clock.now += 100
    phases.begin()
    phases.end("fill")
    assert {phase: seconds for phase, seconds in phases.seconds.items() if seconds} == {"fill": 2.0, "decode": 1.0}


def test_an_engine_counts_the_seconds_of_its_phases() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, [3, 4, 5], max_tokens=4))
    engine.finish()
    counters = engine.loop.counters
    for phase in ("intake", "plan", "fill", "prefill", "decode", "sample", "text", "send"):
        assert counters[f"{phase}_s"] > 0
    assert counters["embed_s"] == 0
