"""The memory of a context: what its estimate has against the buffers that llama.cpp reports, by length and KV type."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import get_args

import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - the sizes of buffers are in its log alone

from car_base.ipc.types import KvType
from car_daemon.gguf.validation import check
from car_daemon.models.memory_estimate import estimate_memory
from car_daemon.models.settings import ModelSettings
from car_engine.llama.context import LlamaContext
from car_engine.llama.library import silence
from car_engine.llama.model import LlamaModel, ModelError
from tests.engine.llama.conftest import loaded
from tools.random_model import generate

SEQUENCES = 4
PROCESS_BYTES = 64 << 20
CLOSE = 0.05
MIB = 1 << 20
LENGTHS = (8192, 32_768)
# Rows of a hundred tokens, the same in every context.
PROMPT = [number * 37 % 500 + 1 for number in range(100)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a long context and heads of 32."""
    file = tmp_path_factory.mktemp("models") / "long.gguf"
    generate(file, "long", "q8_0")
    return file


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the lines that llama.cpp logs."""
    lines: list[str] = []
    callback = binding.llama_log_callback(lambda _level, text, _data: lines.append(text.decode(errors="replace")))
    binding.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield lines
    finally:
        silence()


def buffers(model: LlamaModel, context_tokens: int) -> dict[str, float]:
    """Return the bytes of a context's buffers by their kind."""
    sizes = re.findall(r"(KV|compute|output) buffer size = +([\d.]+) MiB", log(model, SEQUENCES, context_tokens))
    return {kind: float(size) * MIB for kind, size in sizes}


def cells_taken(model: LlamaModel, sequences: int, context_tokens: int) -> float:
    """Return the bytes of a context's cells, windows and states."""
    sizes = re.findall(r"(?:KV|RS) buffer size = +([\d.]+) MiB", log(model, sequences, context_tokens))
    return sum(map(float, sizes)) * MIB


def log(model: LlamaModel, sequences: int, context_tokens: int) -> str:
    """Return what llama.cpp logs about a context."""
    with logged() as lines:
        LlamaContext(model, sequences=sequences, context_tokens=context_tokens, threads=1).close()
    return "".join(lines)


@pytest.mark.parametrize("kv_type", get_args(KvType))
@pytest.mark.parametrize("context_tokens", LENGTHS)
def test_a_context_takes_what_was_estimated(path: Path, context_tokens: int, kv_type: KvType) -> None:
    settings = ModelSettings(path, context_tokens=context_tokens, kv_type=kv_type)
    estimate = estimate_memory([check(path)], settings)
    with loaded(path, kv_type) as model:
        each, actual = model.sequence_bytes(), buffers(model, context_tokens)
    assert actual["KV"] == pytest.approx(SEQUENCES * each.of(context_tokens), rel=CLOSE)
    assert estimate.kv == each.of(context_tokens) + each.mask(context_tokens)
    estimated = estimate.total_with(SEQUENCES * each.of(context_tokens) + each.mask(context_tokens))
    taken = estimate.weights + sum(actual.values())
    assert estimated - PROCESS_BYTES == pytest.approx(taken, rel=CLOSE)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_quantized_sequence_is_saved_copied_and_restored(path: Path, kv_type: KvType) -> None:
    with (
        loaded(path, kv_type) as model,
        closing(LlamaContext(model, sequences=4, context_tokens=256, threads=1)) as context,
    ):
        context.try_out()
        rows = len(PROMPT)
        assert context.decode(PROMPT, list(range(rows)), [0] * rows, [False] * rows) == 0
        saved = bytes(context.save(0))
        assert context.restore(1, memoryview(saved))
        context.copy(0, 2)
        logits = []
        for number in (0, 1, 2):
            assert context.decode([7], [rows], [number], [True]) == 0
            logits.append(context.logits(0).copy())
        assert (logits[0] == logits[1]).all()
        assert (logits[0] == logits[2]).all()


def test_heads_that_no_block_divides_are_refused_with_the_remedy(tmp_path: Path) -> None:
    generate(tmp_path / "m.gguf", "tiny", "f32")
    with (
        loaded(tmp_path / "m.gguf", "q8_0") as model,
        pytest.raises(ModelError, match=r'kv_type = "q8_0".*multiple of 32'),
    ):
        LlamaContext(model, sequences=1, context_tokens=256, threads=1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"failed to allocate buffer for kv cache", "2 sequences of 256 tokens could not be allocated: set a smaller"),
        (b"quantized V cache was requested, but this requires Flash Attention", 'kv_type = "q8_0"'),
        (b"out of patience", "the context could not be created$"),
    ],
)
def test_a_context_that_fails_names_the_kv_type_only_where_llama_cpp_does(
    path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, reason: str
) -> None:
    def fail(_model: object, _params: object) -> None:
        callback, data = binding.llama_log_callback(), ctypes.c_void_p()
        binding.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
        callback(4, b"llama_init_from_model: failed to initialize the context: " + line, data)

    with loaded(path, "q8_0") as model:
        monkeypatch.setattr("car_engine.llama.context.binding.llama_init_from_model", fail)
        with pytest.raises(ModelError, match=reason):
            LlamaContext(model, sequences=2, context_tokens=256, threads=1)
