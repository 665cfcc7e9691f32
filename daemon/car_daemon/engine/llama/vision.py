"""A projector: it turns images into rows of a model's input embedding."""

import ctypes
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as binding
from llama_cpp import mtmd_cpp as mtmd

from car_daemon.engine.images import ImageError, Size
from car_daemon.engine.llama.embedding_batch import Rows
from car_daemon.engine.llama.library import log_nothing
from car_daemon.engine.llama.model import LlamaModel, ModelError

CACHE_BYTES = 64 * 1024 * 1024
# libmtmd gives what it cannot decode to ffprobe, which it looks for in this folder; there is none.
_NO_FOLDER = b"/dev/null"
# An image that projectors cut into rows and columns, where they cut at all: it needs all their tokens.
_LARGE = Size(4000, 4000)


class TokensPiece(NamedTuple):
    """Tokens that the model has around its images."""

    tokens: list[int]


class ImagePiece(NamedTuple):
    """Rows of shape (tokens, width of the model's input embedding); read-only, as others may share them."""

    rows: Rows


Piece = TokensPiece | ImagePiece


class Vision:
    """The projector of one model, for one thread at a time; the model has to outlive it."""

    def __init__(self, path: str, model: LlamaModel, *, threads: int, gpu: bool) -> None:
        mtmd.mtmd_helper_log_set(log_nothing, None)
        self.width = int(binding.llama_model_n_embd_inp(model.handle))
        self._handle = _open(path, model, threads, gpu)
        self._cache = PieceCache(CACHE_BYTES)
        try:
            self.count(_LARGE)
        except ImageError:
            self.close()
            raise ModelError("the projector needs tokens that the model does not have") from None

    def count(self, size: Size) -> int:
        """Return how many positions an image of this size takes, decoding none; raises ImageError."""
        with _blank(size) as bitmap, _chunks(self._handle, bitmap) as chunks:
            return sum(map(_positions, _each(chunks)))

    def encode(self, data: bytes) -> list[Piece]:
        """Return what the model is given for an image that `check_image` let pass; raises ImageError."""
        key = sha256(data).digest()
        pieces = self._cache.get(key)
        if pieces is None:
            pieces = self._encode(data)
            self._cache.put(key, pieces)
        return pieces

    def close(self) -> None:
        """Free the projector."""
        mtmd.mtmd_free(self._handle)

    def _encode(self, data: bytes) -> list[Piece]:
        with _bitmap(self._handle, data) as bitmap, _chunks(self._handle, bitmap) as chunks:
            return [self._piece(chunk) for chunk in _each(chunks)]

    def _piece(self, chunk: Any) -> Piece:
        if _is_text(chunk):
            return TokensPiece(_tokens(chunk))
        if mtmd.mtmd_encode_chunk(self._handle, chunk) != 0:
            raise RuntimeError("the projector could not encode an image")
        shape = (_positions(chunk), self.width)
        # The next image overwrites the projector's output.
        rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._handle), shape).copy()
        rows.flags.writeable = False
        return ImagePiece(rows)


class PieceCache:
    """The images encoded last, by the digest of their bytes; `limit` bounds the bytes of their rows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Mutable state: the images, the one used last at the end, and the bytes of all their rows.
        self._pieces: OrderedDict[bytes, list[Piece]] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> list[Piece] | None:
        """Return an image's pieces; None where they are not kept."""
        if key in self._pieces:
            self._pieces.move_to_end(key)
        return self._pieces.get(key)

    def put(self, key: bytes, pieces: list[Piece]) -> None:
        """Keep an image that is not kept yet, unless it is too large, and drop those not used for longest."""
        size = _size(pieces)
        if size > self._limit:
            return
        self._pieces[key] = pieces
        self._bytes += size
        while self._bytes > self._limit:
            _, dropped = self._pieces.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(pieces: list[Piece]) -> int:
    return sum(piece.rows.nbytes for piece in pieces if isinstance(piece, ImagePiece))


def _open(path: str, model: LlamaModel, threads: int, gpu: bool) -> Any:
    """Load a projector; raises ModelError for one that does not serve this model's images."""
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = gpu
    params.n_threads = threads
    params.print_timings = False
    handle = mtmd.mtmd_init_from_file(path.encode(), model.handle, params)
    if not handle:
        raise ModelError("the projector is none that llama.cpp can load for this model")
    fault = _fault(handle)
    if fault is not None:
        mtmd.mtmd_free(handle)
        raise ModelError(fault)
    return handle


def _fault(handle: Any) -> str | None:
    """Return why a projector cannot be used; None where it can."""
    if not mtmd.mtmd_support_vision(handle):
        return "the projector cannot see images"
    if mtmd.mtmd_decode_use_mrope(handle):
        return "models that give images positions in two dimensions are not supported"
    if mtmd.mtmd_decode_use_non_causal(handle, None):
        return "models that see the whole of an image at once are not supported"
    return None


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
def _bitmap(handle: Any, data: bytes) -> Iterator[Any]:
    """Yield an image's pixels; raises ImageError where they cannot be decoded."""
    options = mtmd.mtmd_helper_init_opt_default()
    options.video_params.ffmpeg_bin_dir = _NO_FOLDER
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    decoded = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(handle, buffer, len(data), False, options)
    if not decoded.bitmap:
        raise ImageError("the image is damaged")
    try:
        yield decoded.bitmap
    finally:
        mtmd.mtmd_bitmap_free(decoded.bitmap)


@contextmanager
def _blank(size: Size) -> Iterator[Any]:
    """Yield a bitmap that has a size and no pixels."""
    bitmap = mtmd.mtmd_bitmap_init(size.width, size.height, None)
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
    """Return a text chunk's tokens; raises ImageError where the model lacks one of them."""
    count = ctypes.c_size_t()
    address = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    tokens: list[int] = address[: count.value]
    if min(tokens) < 0:
        raise ImageError("the model lacks a token that the projector needs for this image")
    return tokens
