"""Where the time of an engine goes."""

from car_daemon.engine.laps import Laps
from tests.daemon.engine.fakes import FakeClock, FakeContext, FakeEngine, run_command


def test_every_lap_counts_for_its_phase_and_a_pause_for_none() -> None:
    clock = FakeClock(tick=1.0)
    laps = Laps(clock)
    laps.begin()
    assert laps.end("fill") == 3.0
    laps.end("decode")
    clock.now += 100
    laps.begin()
    laps.end("fill")
    assert {phase: seconds for phase, seconds in laps.seconds.items() if seconds} == {"fill": 2.0, "decode": 1.0}


def test_an_engine_tells_what_its_phases_took() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, [3, 4, 5], max_tokens=4))
    engine.finish()
    counters = engine.loop.counters
    for phase in ("intake", "plan", "fill", "prefill", "decode", "sample", "text", "send"):
        assert counters[f"{phase}_s"] > 0
    assert counters["embed_s"] == 0
