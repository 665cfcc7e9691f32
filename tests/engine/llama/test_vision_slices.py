"""An image that its projector cuts into slices becomes tokens and rows in turn."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from car_engine.images.decoder import decode
from car_engine.images.image_file import read_image
from car_engine.images.piece_cache import ImagePiece, Piece, TokensPiece
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.tokens import Vocabulary
from car_engine.llama.vision import Vision
from tests.engine.images.pictures import png, png_header, png_rows
from tests.engine.llama.conftest import loaded
from tests.engine.llama.sliced_projector import NEEDED, SLICE_TOKENS, generate_sliced_projector
from tools.random_model import generate

AROUND = "<fake_token_around_image>"
Load = Callable[[dict[str, bool]], LlamaModel]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Load models that have more tokens, closed after the test."""
    with ExitStack() as stack:

        def open_model(extra: dict[str, bool]) -> LlamaModel:
            generate(tmp_path / "model.gguf", "tiny", "f16", extra_tokens=extra)
            return stack.enter_context(loaded(tmp_path / "model.gguf"))

        yield open_model


@pytest.fixture
def projector(tmp_path: Path) -> str:
    """A projector that cuts."""
    generate_sliced_projector(tmp_path / "projector.gguf")
    return str(tmp_path / "projector.gguf")


def shown(piece: Piece, vocabulary: Vocabulary) -> str:
    """Write tokens out, and rows as their number."""
    if isinstance(piece, TokensPiece):
        return vocabulary.detokenize(piece.tokens, special=True)
    return f"{len(piece.rows)} rows"


@pytest.mark.parametrize(
    ("size", "grid"), [((112, 112), [(1, 1), (1, 2), (2, 1), (2, 2)]), ((500, 10), [(1, 1), (1, 2)])]
)
def test_slices_stand_between_the_tokens_that_name_them(
    load: Load, projector: str, size: tuple[int, int], grid: list[tuple[int, int]]
) -> None:
    model = load(NEEDED)
    data = png(*size)
    with closing(Vision(projector, model, threads=1, gpu=False)) as eyes:
        pieces = eyes.encode(decode(data))
        assert eyes.count(read_image(data).size) == sum(len(piece[0]) for piece in pieces)
    rows = f"{SLICE_TOKENS} rows"
    names = [("\n" if (row, column) == (2, 1) else "") + f"{AROUND}<row_{row}_col_{column}>" for row, column in grid]
    written = [shown(piece, Vocabulary(model)) for piece in pieces]
    assert written == [*(part for name in names for part in (name, rows)), f"\n\n{AROUND}<global-img>", rows, AROUND]


def test_every_slice_has_rows_of_its_own(load: Load, projector: str) -> None:
    # Red on the left, blue on the right.
    data = png_header(112, 112) + png_rows((b"\0" + b"\xff\0\0" * 56 + b"\0\0\xff" * 56) * 112)
    with closing(Vision(projector, load(NEEDED), threads=1, gpu=False)) as eyes:
        pieces = eyes.encode(decode(data))
    left, right, below, _, _ = (piece.rows for piece in pieces if isinstance(piece, ImagePiece))
    assert np.abs(left - right).max() > 0.1
    assert np.allclose(left, below)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_model_without_the_projectors_tokens_is_an_error(load: Load, projector: str, missing: str) -> None:
    model = load({token: control for token, control in NEEDED.items() if token != missing})
    with pytest.raises(ModelError, match="needs tokens that the model does not have"):
        Vision(projector, model, threads=1, gpu=False)
