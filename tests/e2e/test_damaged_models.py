"""Damaged model files given to the daemon: it serves them, or ends with a fixed reason and without a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from car_base import guide
from car_daemon.gguf.invalid import Flaw
from tests.e2e.support import PATIENCE_S, Daemon
from tools.hostile_models.mutations import mutate

pytestmark = pytest.mark.slow

GUIDE = guide.PATH.read_bytes()
GUIDE_HEADER = 30_857
# One for each outcome of the first 20: cut short, a wrong count, a wrong shape, and two that llama.cpp itself reads.
SEEDS = (0, 4, 14, 15, 18)
REASONS = {reason.value for reason in Flaw} | {
    "the file is not a model that llama.cpp can load",
    "the model cannot generate text",
    "this llama.cpp does not know the model's architecture",
    "the engine died 6 times before the model was loaded",
}


def fate(start: Callable[..., Daemon], folder: Path, seed: int) -> str:
    """Start a daemon on a damaged model; return why it ended, or that it served until it was stopped."""
    model = folder / f"{seed}.gguf"
    model.write_bytes(mutate(GUIDE, GUIDE_HEADER, seed))
    daemon = start("--model", str(model), "--capacity", "1")
    served = False
    try:
        with daemon.connect() as client:
            served = "result" in client.call("infer", {"prompt": "Hi", "max_tokens": 3})
    except (EOFError, OSError, AssertionError):
        pass  # it ended before it listened, or before it answered
    if not served:
        daemon.process.wait(PATIENCE_S)
    code = daemon.stop()
    log = daemon.log.read_text(errors="replace")
    model.unlink()
    assert "Traceback" not in log, (seed, log)
    if served:
        assert code == 0, (seed, log)
        return "served"
    assert code == 69, (seed, code, log)
    said = log.splitlines()[-1]
    return next((reason for reason in REASONS if f": {reason}" in said), said)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_model_is_served_or_refused_with_a_fixed_reason(
    start: Callable[..., Daemon], folder: Path, seed: int
) -> None:
    assert fate(start, folder, seed) in REASONS | {"served"}
