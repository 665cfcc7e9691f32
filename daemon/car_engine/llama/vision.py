"""The projector of a model: pixels and sounds into rows of its input embedding."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from llama_cpp import mtmd_cpp as mtmd
from numpy.typing import NDArray

from car_engine.images.audio_file import damaged_audio, read_audio
from car_engine.images.image_file import ImageError, MediaError, Size
from car_engine.images.piece_cache import ImagePiece, Piece, TokensPiece
from car_engine.llama.library import log_nothing, pointer
from car_engine.llama.model import LlamaModel, ModelError

Pixels = NDArray[np.uint8]
# An image that projectors cut into rows and columns, if they cut at all: it needs all their tokens.
_LARGE = Size(4000, 4000)
_RGB = 3


class Vision:
    """The projector of one model, for one thread at a time; the model has to outlive it."""

    def __init__(self, path: str, model: LlamaModel, *, threads: int, gpu: bool) -> None:
        mtmd.mtmd_helper_log_set(log_nothing, None)
        self.width = int(binding.llama_model_n_embd_inp(model.handle))
        self._handle = _open(path, model, threads, gpu)
        self.takes_images = bool(mtmd.mtmd_support_vision(self._handle))
        self.takes_audio = bool(mtmd.mtmd_support_audio(self._handle))
        self._rate = int(mtmd.mtmd_get_audio_sample_rate(self._handle))
        self._seconds: dict[
            int, int
        ] = {}  # positions of sounds by their seconds: counting takes as long as a transform
        try:
            if self.takes_images:
                self.count(_LARGE)
            if self.takes_audio:
                self.count_audio(1)
        except MediaError:
            self.close()
            raise ModelError("the projector needs tokens that the model does not have") from None

    def count(self, size: Size) -> int:
        """Return how many positions an image of this size takes, without its pixels; raises ImageError."""
        with _bitmap(size) as bitmap, _chunks(self._handle, bitmap) as chunks:
            return sum(map(_positions, _each(chunks)))

    def count_audio(self, seconds: int) -> int:
        """Return how many positions a sound of so many seconds takes; raises ImageError."""
        if seconds not in self._seconds:
            with _sound(seconds * self._rate) as bitmap, _chunks(self._handle, bitmap) as chunks:
                self._seconds[seconds] = sum(map(_positions, _each(chunks)))
        return self._seconds[seconds]

    def encode(self, pixels: Pixels) -> list[Piece]:
        """Return the pieces of a prompt that an image becomes, from RGB of shape (height, width, 3).

        Raises ImageError, RuntimeError if the projector fails, ValueError for another shape.
        """
        height, width, channels = pixels.shape
        if channels != _RGB or not pixels.flags.c_contiguous:
            raise ValueError(f"pixels are contiguous rows of {_RGB} channels, not of shape {pixels.shape}")
        data = pointer(pixels, ctypes.c_uint8)
        with _bitmap(Size(width, height), data) as bitmap:
            return self._pieces(bitmap)

    def encode_audio(self, data: bytes) -> list[Piece]:
        """Return the pieces of a prompt that a WAV or MP3 becomes, with silence up to a whole second.

        Raises AudioError, ImageError, RuntimeError if the projector fails.
        """
        file = read_audio(data)
        samples = np.zeros(file.seconds * self._rate, np.float32)
        decoded = self._samples(file.data)
        expected = file.frames * self._rate // file.rate
        if expected - len(decoded) > max(self._rate // 2, expected // 10):
            raise damaged_audio()
        count = min(len(samples), len(decoded))
        samples[:count] = decoded[:count]
        if not np.isfinite(samples).all():
            raise damaged_audio()
        with _sound(len(samples), pointer(samples, ctypes.c_float)) as bitmap:
            return self._pieces(bitmap)

    def _samples(self, data: bytes) -> NDArray[np.float32]:
        """Return the samples of one channel in the projector's rate, from a file that `read_audio` put together."""
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(self._handle, buffer, len(data), False)
        if not bitmap:
            raise damaged_audio()
        try:
            if not mtmd.mtmd_bitmap_is_audio(bitmap):
                raise damaged_audio()
            size = int(mtmd.mtmd_bitmap_get_n_bytes(bitmap))
            return np.frombuffer(ctypes.string_at(mtmd.mtmd_bitmap_get_data(bitmap), size), np.float32)
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def _pieces(self, bitmap: Any) -> list[Piece]:
        with _chunks(self._handle, bitmap) as chunks:
            pieces: list[Piece] = []
            for chunk in _each(chunks):
                if _is_text(chunk):
                    pieces.append(TokensPiece(_tokens(chunk)))
                    continue
                if mtmd.mtmd_encode_chunk(self._handle, chunk) != 0:
                    raise RuntimeError("the projector could not encode an image or a sound")
                shape = (_positions(chunk), self.width)
                # The next image overwrites the projector's output.
                rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._handle), shape).copy()
                rows.flags.writeable = False
                pieces.append(ImagePiece(rows))
            return pieces

    def close(self) -> None:
        """Free the projector."""
        mtmd.mtmd_free(self._handle)


def _open(path: str, model: LlamaModel, threads: int, gpu: bool) -> Any:
    """Load a projector; raises ModelError for one that does not serve this model."""
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = gpu
    params.n_threads = threads
    params.print_timings = False
    handle = mtmd.mtmd_init_from_file(path.encode(), model.handle, params)
    if not handle:
        raise ModelError("the file is not a projector that llama.cpp can load for this model")
    fault = None
    if not mtmd.mtmd_support_vision(handle) and not mtmd.mtmd_support_audio(handle):
        fault = "the projector is one for neither images nor audio"
    elif mtmd.mtmd_decode_use_mrope(handle):
        fault = "models that give images positions in two dimensions are not supported"
    elif mtmd.mtmd_decode_use_non_causal(handle, None):
        fault = "models that attend to the whole of an image at once are not supported"
    if fault is not None:
        mtmd.mtmd_free(handle)
        raise ModelError(fault)
    return handle


@contextmanager
def _chunks(handle: Any, bitmap: Any) -> Iterator[Any]:
    """Yield the chunks of one image, tokens and pictures in order; raises ImageError."""
    part = mtmd.mtmd_input_part(None, bitmap)
    parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
    chunks = mtmd.mtmd_input_chunks_init()
    try:
        if mtmd.mtmd_tokenize_from_parts(handle, chunks, parts, 1, False) != 0:
            raise ImageError("the model cannot take an image of this shape")
        yield chunks
    finally:
        mtmd.mtmd_input_chunks_free(chunks)


@contextmanager
def _bitmap(size: Size, pixels: Any = None) -> Iterator[Any]:
    """Yield a bitmap of a size; without pixels it can only be counted."""
    bitmap = mtmd.mtmd_bitmap_init(size.width, size.height, pixels)
    try:
        yield bitmap
    finally:
        mtmd.mtmd_bitmap_free(bitmap)


@contextmanager
def _sound(count: int, samples: Any = None) -> Iterator[Any]:
    """Yield a bitmap of so many samples; without them it can only be counted."""
    bitmap = mtmd.mtmd_bitmap_init_from_audio(count, samples)
    try:
        yield bitmap
    finally:
        mtmd.mtmd_bitmap_free(bitmap)


def _each(chunks: Any) -> Iterator[Any]:
    return (mtmd.mtmd_input_chunks_get(chunks, place) for place in range(mtmd.mtmd_input_chunks_size(chunks)))


def _is_text(chunk: Any) -> bool:
    return bool(mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT)


def _positions(chunk: Any) -> int:
    """Return how many positions a chunk takes; raises ImageError as `_tokens` does."""
    return len(_tokens(chunk)) if _is_text(chunk) else int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))


def _tokens(chunk: Any) -> list[int]:
    """Return a text chunk's tokens; raises ImageError if the model lacks either."""
    count = ctypes.c_size_t()
    address = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    tokens: list[int] = address[: count.value]
    if min(tokens) < 0:
        raise ImageError("the model lacks a token that the projector needs for this image")
    return tokens
