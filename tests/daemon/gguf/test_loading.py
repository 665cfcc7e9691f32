"""Damaged models that pass the checks without a warning: llama.cpp loads or refuses them, and survives either."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from car_base.guide import PATH
from car_daemon.gguf.invalid import InvalidModel
from car_daemon.gguf.validation import check
from tests.pace import HANG_S
from tools.hostile_models.mutations import mutate

ROOT = Path(__file__).parents[3]
GUIDE_HEADER = 30_857
MODELS = 200


def damaged_but_valid(path: Path) -> Iterator[bytes]:
    """Yield damaged models that pass the checks without a warning."""
    data = PATH.read_bytes()
    for seed in count(100_000):
        damaged = mutate(data, GUIDE_HEADER, seed)
        path.write_bytes(damaged)
        try:
            warnings = check(path).warnings
        except InvalidModel:
            continue
        if not warnings:
            yield damaged


@pytest.mark.slow
def test_no_model_that_passes_the_checks_ends_its_loader(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for number, damaged in enumerate(islice(damaged_but_valid(tmp_path / "model.gguf"), MODELS)):
        (folder / f"{number}.gguf").write_bytes(damaged)
    command = [sys.executable, "-m", "tests.daemon.gguf.loading", str(folder)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=HANG_S).stdout
    endings = dict(line.split() for line in output.splitlines())
    assert len(endings) == MODELS
    assert set(endings.values()) <= {"0", "1"}
