"""Refusals with their reasons, and the time and memory that a check needs."""

import errno
import os
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from car_base.guide import PATH
from car_daemon.gguf.hyperparameters import Attention
from car_daemon.gguf.invalid import Flaw, InvalidModel
from car_daemon.gguf.validation import HeaderFacts, check
from tests.daemon.gguf.faults import FAULTS, UNUSUAL
from tests.daemon.gguf.files import F32, I32, Gguf, model, numbers, strings, tensor, text, u32
from tests.pace import cpu_time
from tools.hostile_models.mutations import mutate

GUIDE_HEADER = 30_857
MIB = 1 << 20


@pytest.mark.parametrize(("data", "reason"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_refused_with_its_fixed_text(tmp_path: Path, data: bytes, reason: Flaw) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(InvalidModel) as refused:
        check(path)
    assert refused.value.reason is reason
    assert str(refused.value).startswith(reason.value)


@pytest.mark.parametrize("file", [file[1] for file in UNUSUAL], ids=[file[0] for file in UNUSUAL])
def test_an_unusual_file_is_valid(tmp_path: Path, file: Gguf) -> None:
    check(file.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            model(llama__block_count=u32(513)),
            "a size of the model is impossible: block_count is 513, 1 to 512 are allowed",
        ),
        (
            model(llama__attention__head_count_kv=u32(3)),
            "the numbers of attention heads disagree: 4 heads, 3 of keys",
        ),
        (
            Gguf(version=(4).to_bytes(4, "little")),
            "this GGUF version is not supported: 4; 2 and 3 are",
        ),
        (
            model(tokenizer__ggml__bos_token_id=u32(4)),
            "a special token is not in the vocabulary: it is 4 of 4",
        ),
        (
            model(general__architecture=text("rnd1")),
            "the model writes text by diffusion, which card does not serve: rnd1",
        ),
    ],
)
def test_a_refusal_has_the_figure_and_the_limit(tmp_path: Path, file: Gguf, message: str) -> None:
    with pytest.raises(InvalidModel) as refused:
        check(file.write(tmp_path / "model.gguf"))
    assert str(refused.value) == message


def test_an_unknown_tensor_type_is_a_warning_and_extends_to_the_next_tensor(tmp_path: Path) -> None:
    types = [tensor("a", (32,), 77), tensor("b", (32,), 0, 512), tensor("c", (8,), 77, 640)]
    facts = check(Gguf(tensors=types).write(tmp_path / "model.gguf"))
    assert facts.warnings == ("tensor type 77 is unknown to this version (2 of 3 tensors)",)
    assert facts.tensor_bytes == 1024


def test_every_reason_about_content_has_a_fault() -> None:
    elsewhere = {
        Flaw.NOT_DOWNLOADED,
        Flaw.UNREADABLE,
        Flaw.NOT_A_FILE,
        Flaw.TOO_LARGE,
        Flaw.NO_ADAPTER,
        Flaw.NO_PROJECTOR,
    }
    assert {fault[2] for fault in FAULTS} == set(Flaw) - elsewhere


def test_the_facts_of_the_built_in_model() -> None:
    assert check(PATH) == HeaderFacts(
        architecture="llama",
        tensor_bytes=1_049_088,
        parameters=984_192,
        file_type=7,
        vocabulary=1024,
        context_length=4096,
        embedding_length=128,
        block_count=4,
        attention=Attention((4, 4, 4, 4), 32, 32),
        state_bytes=0,
        most_tokens=None,
        parts=1,
        warnings=(),
        layers=tuple((number, 227_328, 0) for number in range(4)),
        embedding_bytes=1024 * 128 // 32 * 34,
        masks=1,
        memory="attention",
        unused_layers=0,
    )


@pytest.mark.parametrize(
    ("generated", "memory"),
    [
        ("sliding.generate_sliding", "windows"),
        ("recurrent.generate_recurrent", "recurrent"),
        ("hybrid.generate_short_convolution", "hybrid"),
        ("hybrid.generate_delta_net", "hybrid"),
        ("hybrid.generate_mamba2_hybrid", "hybrid"),
    ],
)
def test_a_header_says_what_a_sequence_keeps(tmp_path: Path, generated: str, memory: str) -> None:
    pytest.importorskip("gguf")
    module, function = generated.split(".")
    generate = getattr(import_module(f"tools.random_models.{module}"), function)
    generate(tmp_path / "model.gguf")
    assert check(tmp_path / "model.gguf").memory == memory


def test_layers_that_guess_further_tokens_are_counted(tmp_path: Path) -> None:
    facts = check(model(llama__nextn_predict_layers=u32(1)).write(tmp_path / "model.gguf"))
    assert (facts.block_count, facts.unused_layers) == (2, 1)


@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_0"])
def test_a_generated_model_is_valid(tmp_path: Path, type: str) -> None:
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
        (a_directory, Flaw.NOT_A_FILE),
        (a_fifo, Flaw.NOT_A_FILE),
        (a_device, Flaw.NOT_A_FILE),
        (nothing, Flaw.UNREADABLE),
    ],
)
def test_a_path_that_is_not_a_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], reason: Flaw
) -> None:
    make(tmp_path / "model.gguf")
    with pytest.raises(InvalidModel) as refused:
        check(tmp_path / "model.gguf")
    assert refused.value.reason is reason


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(InvalidModel):
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
    with cpu_time() as spent:
        check(path)
    assert spent.seconds < 0.5


def verdict(path: Path) -> HeaderFacts | Flaw:
    """Return what a check returns or raises; any other exception is an error."""
    try:
        return check(path)
    except InvalidModel as invalid:
        return invalid.reason


@pytest.mark.slow
def test_damaged_models_are_valid_or_refused_in_little_time_and_memory(tmp_path: Path) -> None:
    data, path = PATH.read_bytes(), tmp_path / "model.gguf"
    verdicts = []
    for seed in range(100):
        path.write_bytes(mutate(data, GUIDE_HEADER, seed))
        with cpu_time() as spent:
            verdicts.append(verdict(path))
        # The loop that CPU time is measured by would be traced too, which takes a hundred times as long.
        tracemalloc.start()
        verdict(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert spent.seconds < 1, seed
        assert peak < 4 * MIB, seed
    assert len(set(verdicts)) > 5


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_is_not_a_fault_of_the_file(monkeypatch: pytest.MonkeyPatch, shortage: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(shortage, "short of something")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="short of something"):
        check(PATH)
