"""What is refused, with which fixed text, and in how much time and memory."""

import errno
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from car_daemon.guide import PATH
from car_daemon.models.soundness import Facts, check
from car_daemon.models.unsound import Reason, UnsoundModel
from tests.daemon.models.faults import FAULTS, SOUND
from tests.daemon.models.files import F32, I32, Gguf, model, numbers, strings
from tests.daemon.models.mutations import mutate

GUIDE_HEADER = 30_857
MIB = 1 << 20


@pytest.mark.parametrize(("data", "reason"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_refused_with_its_fixed_text(tmp_path: Path, data: bytes, reason: Reason) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsoundModel) as refused:
        check(path)
    assert refused.value.reason is reason
    assert str(refused.value) == reason.value


@pytest.mark.parametrize("file", [sound[1] for sound in SOUND], ids=[sound[0] for sound in SOUND])
def test_what_is_unusual_is_not_refused(tmp_path: Path, file: Gguf) -> None:
    check(file.write(tmp_path / "model.gguf"))


def test_every_reason_about_content_has_a_fault() -> None:
    elsewhere = {
        Reason.NOT_DOWNLOADED,
        Reason.UNREADABLE,
        Reason.NOT_A_FILE,
        Reason.TOO_LARGE,
        Reason.NO_ADAPTER,
        Reason.NO_PROJECTOR,
    }
    assert {fault[2] for fault in FAULTS} == set(Reason) - elsewhere


def test_the_facts_of_the_built_in_model() -> None:
    assert check(PATH) == Facts(
        architecture="llama",
        tensor_bytes=1_049_088,
        parameters=984_192,
        file_type=7,
        vocabulary=1024,
        context_length=4096,
        embedding_length=128,
        block_count=4,
        kv_bytes_per_token=2048,
        state_bytes=0,
        most_tokens=None,
        parts=1,
    )


@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_0"])
def test_a_generated_model_is_sound(tmp_path: Path, type: str) -> None:
    pytest.importorskip("gguf")
    from tools.random_model import generate

    generate(tmp_path / "model.gguf", preset="tiny", type=type)
    assert check(tmp_path / "model.gguf").vocabulary == 512


def a_directory(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nothing(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_directory, Reason.NOT_A_FILE),
        (a_fifo, Reason.NOT_A_FILE),
        (a_device, Reason.NOT_A_FILE),
        (nothing, Reason.UNREADABLE),
    ],
)
@pytest.mark.timeout(5)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], reason: Reason) -> None:
    make(tmp_path / "model.gguf")
    with pytest.raises(UnsoundModel) as refused:
        check(tmp_path / "model.gguf")
    assert refused.value.reason is reason


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(UnsoundModel):
        check(Path("a\0b"))


@pytest.mark.slow
def test_a_large_vocabulary_is_checked_quickly(tmp_path: Path) -> None:
    count = 150_000
    words = strings(*(f"token {number}" for number in range(count)))
    merges = strings(*(f"to ken{number}" for number in range(count)))
    file = model(
        tokenizer__ggml__tokens=words,
        tokenizer__ggml__merges=merges,
        tokenizer__ggml__scores=numbers(F32, *range(count)),
        tokenizer__ggml__token_type=numbers(I32, *range(count)),
    )
    path = file.write(tmp_path / "model.gguf")
    # The best of three, in processor time: other work on the machine must not fail this.
    assert min(seconds(path) for _ in range(3)) < 0.5


def seconds(path: Path) -> float:
    """Return how much processor time a check takes."""
    started = time.process_time()
    check(path)
    return time.process_time() - started


def verdict(path: Path) -> Facts | Reason:
    """Return what a check returns or raises; any other exception is an error."""
    try:
        return check(path)
    except UnsoundModel as unsound:
        return unsound.reason


@pytest.mark.slow
def test_damaged_models_are_sound_or_refused_in_little_time_and_memory(tmp_path: Path) -> None:
    data, path = PATH.read_bytes(), tmp_path / "model.gguf"
    verdicts = []
    for seed in range(100):
        path.write_bytes(mutate(data, GUIDE_HEADER, seed))
        tracemalloc.start()
        started = time.process_time()
        verdicts.append(verdict(path))
        elapsed = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert elapsed < 1, seed
        assert peak < 4 * MIB, seed
    assert len(set(verdicts)) > 5


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_says_nothing_of_a_file(monkeypatch: pytest.MonkeyPatch, shortage: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(shortage, "short of something")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="short of something"):
        check(PATH)
