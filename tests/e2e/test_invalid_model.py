"""Model files that must not reach an engine, and files that only an engine can judge."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from car_base import guide
from car_daemon.gguf.header import BoundedReader, read_header
from tests.e2e.support import KNOWN, PATIENCE_S, Daemon, greedy, running

pytestmark = pytest.mark.slow

GUIDE = guide.PATH.read_bytes()
# Where the header says how many tensors there are.
TENSOR_COUNT = slice(8, 16)


def with_many_tensors() -> bytes:
    """Return the guide model with a header that promises more tensors than any file can hold."""
    data = bytearray(GUIDE)
    data[TENSOR_COUNT] = (2**62).to_bytes(8, "little")
    return bytes(data)


def with_a_tensor_type(type: int) -> bytes:
    """Return the guide model with another type of its last tensor."""
    data = bytearray(GUIDE)
    with guide.PATH.open("rb", buffering=0) as file:
        header = read_header(BoundedReader(file, len(GUIDE)))
    last_type = header.end - 12
    data[last_type : last_type + 4] = type.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_many_tensors(), "the file holds less than its header declares"),
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
    assert daemon.process.wait(PATIENCE_S) == 69
    lines = daemon.log.read_text().splitlines()
    assert reason in lines[-1]
    assert any("model.failed" in line and reason in line for line in lines)
    assert not any("engine." in line for line in lines)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            GUIDE.replace(b"llama", b"lemma"),
            "this llama.cpp does not know the model's architecture, lemma; a newer one may",
        ),
        (
            with_a_tensor_type(77),
            "the file is not a model that llama.cpp can load; "
            "tensor type 77 is unknown to this version (1 of 38 tensors)",
        ),
    ],
    ids=["architecture", "tensor type"],
)
def test_an_engine_tries_a_file_with_unknown_parts_and_its_refusal_says_which(
    start: Callable[..., Daemon], folder: Path, content: bytes, reason: str
) -> None:
    model = folder / "new.gguf"
    model.write_bytes(content)
    daemon = start("--model", str(model))
    assert daemon.process.wait(PATIENCE_S) == 69
    assert daemon.log.read_text().splitlines()[-1].endswith(f": {reason}")


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
        assert change["reason"] == "the file holds less than its header declares"
        assert client.reason("infer", greedy(KNOWN[0])) == "model_unavailable"
    assert daemon.process.returncode == 0
