"""Model files that no engine may see: at the start, and in the place of one that is served."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from car_daemon import guide
from tests.e2e.support import KNOWN, Daemon, greedy, running

pytestmark = pytest.mark.slow

GUIDE = guide.PATH.read_bytes()
# Where the header says how many tensors there are.
TENSOR_COUNT = slice(8, 16)


def with_many_tensors() -> bytes:
    """Return the guide model with a header that promises more tensors than any file can hold."""
    data = bytearray(GUIDE)
    data[TENSOR_COUNT] = (2**62).to_bytes(8, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_many_tensors(), "counts do not fit the file"),
        (GUIDE[:500_000], "a tensor lies outside the file"),
        (GUIDE[:20], "the file is cut short"),
        (b"GGUF" + (99).to_bytes(4, "little") + GUIDE[8:], "this GGUF version is not supported"),
    ],
    ids=["counts", "half", "begin", "version"],
)
def test_no_engine_sees_a_file_whose_header_is_unsound(
    start: Callable[..., Daemon], folder: Path, content: bytes, reason: str
) -> None:
    model = folder / "bad.gguf"
    model.write_bytes(content)
    daemon = start("--model", str(model))
    assert daemon.process.wait(30) == 69
    lines = daemon.log.read_text().splitlines()
    assert reason in lines[-1]
    assert any("model.failed" in line and reason in line for line in lines)
    assert not any("engine." in line for line in lines)


def test_a_model_that_is_replaced_by_an_unsound_file_fails_with_its_next_engine_and_the_daemon_goes_on(
    folder: Path,
) -> None:
    model = folder / "mine.gguf"
    shutil.copy(guide.PATH, model)
    with running(folder, "--model", str(model)) as daemon, daemon.connect() as client:
        daemon.ready()
        (folder / "other.gguf").write_bytes(with_many_tensors())
        os.replace(folder / "other.gguf", model)
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        client.result("inference/capacity", {"subscribe": True})
        daemon.engine().kill()
        while (change := client.receive()["params"])["state"] != "failed":
            pass
        assert change["reason"] == "counts do not fit the file"
        assert client.reason("infer", greedy(KNOWN[0])) == "model_unavailable"
    assert daemon.process.returncode == 0
