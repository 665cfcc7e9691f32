"""Images become the rows that llama.cpp itself would decode."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - what is decoded is proved against llama.cpp itself
from llama_cpp import mtmd_cpp as mtmd  # noqa: TID251
from numpy.typing import NDArray

from car_engine.images.decoder import decode
from car_engine.images.image_file import Size
from car_engine.images.piece_cache import ImagePiece
from car_engine.llama.context import EmbeddingBatch
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.vision import Vision
from tests.engine.images.pictures import gif, jpeg, png
from tests.engine.llama.conftest import loaded
from tools.random_model import generate
from tools.random_models.embedding import generate_embedding
from tools.random_models.projector import IMAGE_TOKENS, generate_projector

CONTEXT = 128
RED, BLUE = (255, 0, 0), (0, 0, 255)
BEFORE, AFTER = [101, 102, 103], [104, 105]
Open = Callable[[Path], Vision]


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A projector for the model."""
    path = tmp_path_factory.mktemp("vision") / "projector.gguf"
    generate_projector(path)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A model of random weights."""
    path = tmp_path_factory.mktemp("llama") / "model.gguf"
    generate(path, "tiny", "f16")
    with loaded(path) as model:
        yield model


@pytest.fixture
def open_vision(llama: LlamaModel) -> Iterator[Open]:
    """Open projectors that are closed after the test."""
    opened: list[Vision] = []

    def open_file(path: Path) -> Vision:
        opened.append(Vision(str(path), llama, threads=1, gpu=False))
        return opened[-1]

    yield open_file
    for one in opened:
        one.close()


@pytest.fixture
def eyes(open_vision: Open, projector: Path) -> Vision:
    """The model's projector."""
    return open_vision(projector)


def rows_of(eyes: Vision, data: bytes) -> NDArray[np.float32]:
    """Return the rows of an image that is nothing but rows."""
    [piece] = eyes.encode(decode(data))
    assert isinstance(piece, ImagePiece)
    return piece.rows


class Decoder:
    """A context, and what is in its first sequence."""

    def __init__(self, model: LlamaModel) -> None:
        params = binding.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        self.context = binding.llama_init_from_model(model.handle, params)
        self.vocabulary_size = binding.llama_vocab_n_tokens(model.vocab)
        self.batch = EmbeddingBatch(CONTEXT, binding.llama_model_n_embd_inp(model.handle))
        self.end = 0

    def tokens(self, tokens: list[int]) -> None:
        """Decode tokens; the last has logits."""
        batch = binding.llama_batch_get_one((binding.llama_token * len(tokens))(*tokens), len(tokens))
        assert binding.llama_decode(self.context, batch) == 0
        self.end += len(tokens)

    def rows(self, rows: NDArray[np.float32], *, output_last: bool = False) -> None:
        """Decode rows."""
        batch = self.batch.fill(rows, self.end, 0, output_last=output_last)
        assert binding.llama_decode(self.context, batch) == 0
        self.end += len(rows)

    def logits(self) -> NDArray[np.float32]:
        """Return the logits of the last row, which the context then forgets with all else."""
        pointer = binding.llama_get_logits_ith(self.context, -1)
        logits = np.ctypeslib.as_array(pointer, (self.vocabulary_size,)).copy()
        binding.llama_memory_clear(binding.llama_get_memory(self.context), True)
        self.end = 0
        return logits


@pytest.fixture
def decoder(llama: LlamaModel) -> Iterator[Decoder]:
    """An empty context."""
    made = Decoder(llama)
    yield made
    binding.llama_free(made.context)


def reference(decoder: Decoder, llama: LlamaModel, projector: Path, color: tuple[int, int, int]) -> Any:
    """Return the logits after tokens, a picture and tokens, decoded by libmtmd."""
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.print_timings = False, 1, False
    handle = mtmd.mtmd_init_from_file(str(projector).encode(), llama.handle, params)
    bitmap = mtmd.mtmd_bitmap_init(40, 30, (ctypes.c_uint8 * 3600)(*color * 1200))
    part = mtmd.mtmd_input_part(None, bitmap)
    parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
    chunks = mtmd.mtmd_input_chunks_init()
    assert mtmd.mtmd_tokenize_from_parts(handle, chunks, parts, 1, False) == 0
    decoder.tokens(BEFORE)
    end = binding.llama_pos()
    given = (chunks, len(BEFORE), 0, CONTEXT, False, ctypes.byref(end))
    code = mtmd.mtmd_helper_eval_chunks(handle, decoder.context, *given)
    assert (code, end.value) == (0, len(BEFORE) + IMAGE_TOKENS)
    decoder.tokens(AFTER)
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_free(handle)
    return decoder.logits()


def test_an_image_is_rows_of_the_models_width(eyes: Vision) -> None:
    rows = rows_of(eyes, png(40, 30, RED))
    assert rows.shape == (IMAGE_TOKENS, eyes.width)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert not rows.flags.writeable


def test_different_images_have_different_rows(eyes: Vision) -> None:
    red = rows_of(eyes, png(40, 30, RED)).copy()
    assert np.abs(red - rows_of(eyes, png(40, 30, BLUE))).max() > 0.1
    assert np.array_equal(red, rows_of(eyes, png(40, 30, RED)))


@pytest.mark.parametrize("encode", [jpeg, gif])
def test_all_formats_say_the_same(eyes: Vision, encode: Callable[[int, int], bytes]) -> None:
    assert np.allclose(rows_of(eyes, encode(40, 30)), rows_of(eyes, png(40, 30)), atol=1e-5)


def test_rows_decoded_by_hand_are_what_libmtmd_decodes(
    decoder: Decoder, llama: LlamaModel, eyes: Vision, projector: Path
) -> None:
    answers = {}
    for color in (RED, BLUE):
        rows = rows_of(eyes, png(40, 30, color))
        decoder.tokens(BEFORE)
        decoder.rows(rows)
        decoder.tokens(AFTER)
        answers[color] = decoder.logits()
        assert np.array_equal(answers[color], reference(decoder, llama, projector, color))
    assert np.abs(answers[RED] - answers[BLUE]).max() > 0.1


@pytest.mark.parametrize("first", [1, 7, IMAGE_TOKENS - 1])
def test_rows_may_be_split_over_decodes(decoder: Decoder, eyes: Vision, first: int) -> None:
    rows = rows_of(eyes, png(40, 30, RED))
    answers = []
    for parts in ([rows], [rows[:first], rows[first:]]):
        decoder.tokens(BEFORE)
        for part in parts:
            decoder.rows(part)
        decoder.tokens(AFTER)
        answers.append(decoder.logits())
    whole, split = answers
    assert np.allclose(whole, split, atol=1e-3)


def test_an_image_at_the_end_of_a_prompt_has_logits(decoder: Decoder, eyes: Vision) -> None:
    decoder.tokens(BEFORE)
    decoder.rows(rows_of(eyes, png(40, 30, RED)), output_last=True)
    assert np.isfinite(decoder.logits()).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 4), (1, 5), (1, 4, 1)])
def test_a_batch_takes_no_rows_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a batch has 1 to 2 rows of 4 numbers"):
        EmbeddingBatch(2, 4).fill(np.zeros(shape, np.float32), 0, 0, output_last=True)


@pytest.mark.parametrize("shape", [(4, 4, 4), (4, 4, 1)])
def test_pixels_of_other_channels_are_refused(eyes: Vision, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="3 channels"):
        eyes.encode(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("size", [(1, 1), (2, 100), (100, 2), (300, 7)])
def test_images_of_all_shapes_are_taken(eyes: Vision, size: tuple[int, int]) -> None:
    data = png(*size)
    assert rows_of(eyes, data).shape[0] == eyes.count(Size(*size)) == IMAGE_TOKENS


def test_an_image_is_counted_without_its_pixels(eyes: Vision) -> None:
    assert eyes.count(Size(8192, 1900)) == IMAGE_TOKENS


@pytest.mark.parametrize("keep", [0, 100, 20_000])
def test_a_projector_that_cannot_be_loaded_is_an_error(
    open_vision: Open, projector: Path, tmp_path: Path, keep: int
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(projector.read_bytes()[:keep])
    for path in (cut, tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="the file is not a projector"):
            open_vision(path)


def test_files_that_are_no_projector_of_the_model_are_an_error(open_vision: Open, tmp_path: Path) -> None:
    generate_projector(tmp_path / "wide.gguf", "135m")
    generate(tmp_path / "text.gguf", "tiny", "f16")
    generate_embedding(tmp_path / "bert.gguf")
    for name in ("wide", "text", "bert"):
        with pytest.raises(ModelError, match="the file is not a projector"):
            open_vision(tmp_path / f"{name}.gguf")


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("mtmd_support_vision", False, "the projector is one for neither images nor audio"),
        ("mtmd_decode_use_mrope", True, "positions in two dimensions"),
        ("mtmd_decode_use_non_causal", True, "attend to the whole of an image at once"),
    ],
)
def test_projectors_of_other_kinds_are_an_error(
    open_vision: Open, projector: Path, monkeypatch: pytest.MonkeyPatch, name: str, answer: bool, reason: str
) -> None:
    monkeypatch.setattr(mtmd, name, lambda *_: answer)
    with pytest.raises(ModelError, match=reason):
        open_vision(projector)


def test_nothing_is_logged(
    open_vision: Open, projector: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    eyes = open_vision(projector)
    eyes.encode(decode(png(40, 30, RED)))
    with pytest.raises(ModelError):
        open_vision(tmp_path)
    assert capfd.readouterr() == ("", "")
