"""What the checks let through, given to llama.cpp: it loads or refuses it, and survives either."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from car_daemon.guide import PATH
from car_daemon.models.soundness import check
from car_daemon.models.unsound import UnsoundModel
from tests.daemon.models.mutations import mutate

ROOT = Path(__file__).parents[3]
GUIDE_HEADER = 30_857
MODELS = 200


def damaged_but_sound(path: Path) -> Iterator[bytes]:
    """Yield damaged models that pass the checks."""
    data = PATH.read_bytes()
    for seed in count(100_000):
        damaged = mutate(data, GUIDE_HEADER, seed)
        path.write_bytes(damaged)
        try:
            check(path)
        except UnsoundModel:
            continue
        yield damaged


@pytest.mark.slow
def test_no_model_that_passes_the_checks_ends_its_loader(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for number, damaged in enumerate(islice(damaged_but_sound(tmp_path / "model.gguf"), MODELS)):
        (folder / f"{number}.gguf").write_bytes(damaged)
    command = [sys.executable, "-m", "tests.daemon.models.loading", str(folder)]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100).stdout
    endings = dict(line.split() for line in said.splitlines())
    assert len(endings) == MODELS
    assert set(endings.values()) <= {"0", "1"}
