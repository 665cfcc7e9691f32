"""The cost curve is measured as far as time and memory go."""

from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.trial import Trial
from tests.daemon.engine.fakes import FakeClock

PLENTY = 10**9


def trial(model: LlamaModel, *, memory_bytes: int = PLENTY, tick: float = 0.0001) -> Trial:
    return Trial(model, threads=1, memory_bytes=memory_bytes, clock=FakeClock(tick))


def test_with_time_and_memory_everything_is_measured(model: LlamaModel) -> None:
    curve = trial(model).measure(1000.0)
    assert sorted(curve.decode) == [1, 2, 4, 8, 16, 32]
    assert sorted(curve.prefill) == [16, 64, 256]
    assert min([*curve.decode.values(), *curve.prefill.values()]) > 0


def test_without_time_nothing_is_declared_to_be_measured(model: LlamaModel) -> None:
    curve = trial(model, tick=1.0).measure(0.5)
    assert (curve.decode, curve.prefill) == ({}, {})


def test_with_little_time_what_decides_most_is_measured(model: LlamaModel) -> None:
    curve = trial(model, tick=0.1).measure(3.0)
    assert 1 in curve.decode
    assert 32 not in curve.decode


def test_more_sequences_than_memory_holds_are_not_measured(model: LlamaModel) -> None:
    curve = trial(model, memory_bytes=model.kv_bytes(256) * 5).measure(1000.0)
    assert max(curve.decode) == 4
    assert max(trial(model, memory_bytes=0).measure(1000.0).decode) == 1
