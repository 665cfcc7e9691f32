"""The cost curve is measured as far as time and memory go."""

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from car_base.host.cores import CoresReading, usable_cpus
from car_engine.llama.calibration import Calibration, sequence_bytes
from car_engine.llama.model import LlamaModel
from tests.engine.llama.conftest import loaded
from tests.pace import SetClock
from tools.random_models.positions import generate_positions

PLENTY = 10**9


def trial(model: LlamaModel, *, memory_bytes: int = PLENTY, tick: float = 0.0001) -> Calibration:
    need = sequence_bytes(model, threads=1)
    return Calibration(model, need, threads=1, memory_bytes=memory_bytes, clock=SetClock(tick=tick))


def test_with_time_and_memory_everything_is_measured(model: LlamaModel) -> None:
    curve = trial(model).measure(1000.0)
    assert sorted(curve.decode) == [1, 2, 4, 8, 16, 32]
    assert sorted(curve.prefill) == [8, 16, 64, 256]
    assert min([*curve.decode.values(), *curve.prefill.values()]) > 0


@pytest.mark.parametrize("stalled", [2, 4, 8, 16, 32])
def test_rows_together_cost_no_more_than_apart_however_busy_the_machine_was(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, stalled: int
) -> None:
    def once(_self: Calibration, _kind: str, size: int) -> float:
        return 10.0 if size == stalled else 0.01 + 0.001 * size

    monkeypatch.setattr(Calibration, "_once", once)
    curve = trial(model).measure(1000.0)
    assert all(seconds <= rows * curve.decode[1] for rows, seconds in curve.decode.items())
    assert curve.plausible


def test_without_time_nothing_is_declared_to_be_measured(model: LlamaModel) -> None:
    curve = trial(model, tick=1.0).measure(0.5)
    assert (curve.decode, curve.prefill) == ({}, {})


def test_with_little_time_what_decides_most_is_measured(model: LlamaModel) -> None:
    curve = trial(model, tick=0.1).measure(3.0)
    assert 1 in curve.decode
    assert 32 not in curve.decode


def test_more_sequences_than_memory_holds_are_not_measured(model: LlamaModel) -> None:
    curve = trial(model, memory_bytes=model.sequence_bytes().of(256) * 5).measure(1000.0)
    assert max(curve.decode) == 4
    assert max(trial(model, memory_bytes=0).measure(1000.0).decode) == 1


def test_no_prompt_is_measured_that_is_longer_than_the_table_of_positions(tmp_path: Path) -> None:
    generate_positions(tmp_path / "m.gguf", 100)
    with loaded(tmp_path / "m.gguf") as short:
        assert sorted(trial(short).measure(1000.0).prefill) == [8, 16, 64]


@pytest.mark.parametrize(("others", "marked"), [(0.2, False), (0.5, True)])
def test_a_curve_has_the_cores_that_others_used_if_they_left_too_few(
    model: LlamaModel, others: float, marked: bool
) -> None:
    clock, cores = SetClock(tick=0.001), len(usable_cpus())

    def read(pids: Collection[int]) -> CoresReading:
        assert list(pids) == [os.getpid()]
        return CoresReading((others + 1) * clock.now, {os.getpid(): clock.now})

    need = sequence_bytes(model, threads=1)
    trial = Calibration(model, need, threads=cores, memory_bytes=PLENTY, clock=clock, read_cores=read)
    curve = trial.measure(1000.0)
    assert (curve.others == pytest.approx(others, abs=0.1)) is marked
    assert (curve.others > 0) is marked
