"""Texts to embed are refused where they are too long, or cut where the request says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.frames import PrepareTexts
from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.text_inputs import TextInputs

BEGIN, END = 1000, 1001


def inputs(limit: int, begin: list[int], end: list[int]) -> TextInputs:
    """Return inputs with a token a byte between special tokens; the longest token has four bytes."""
    return TextInputs(
        lambda text: [*begin, *text.encode(), *end],
        lambda query, text: [*query.encode(), *text.encode()],
        ContextLimit(limit, longest_piece=4),
        ranks=False,
    )


@given(
    st.text(max_size=60), st.integers(2, 20), st.lists(st.just(BEGIN), max_size=1), st.lists(st.just(END), max_size=1)
)
def test_a_text_that_is_cut_keeps_its_beginning_and_the_special_tokens(
    text: str, limit: int, begin: list[int], end: list[int]
) -> None:
    whole = [*begin, *text.encode(), *end]
    if not whole:
        return
    (cut,) = inputs(limit, begin, end).of(PrepareTexts(1, [text], None, truncate=True))
    if len(whole) <= limit:
        assert cut == whole
    else:
        assert cut == whole[: limit - len(end)] + end


def test_a_text_of_megabytes_is_cut_before_it_becomes_tokens() -> None:
    sizes: list[int] = []

    def tokenize(text: str) -> list[int]:
        sizes.append(len(text))
        return [*text.encode()]

    texts = TextInputs(tokenize, lambda query, text: [], ContextLimit(8, longest_piece=4), ranks=False)
    assert texts.of(PrepareTexts(1, ["é" * 1_000_000], None, truncate=True)) == [[*("é" * 4).encode()]]
    assert max(sizes) == 16


@pytest.mark.parametrize("text", ["a" * 9, "a" * 1_000])
def test_a_text_that_is_too_long_is_refused_without_truncate(text: str) -> None:
    with pytest.raises(Refusal, match="context_exceeded"):
        inputs(8, [], []).of(PrepareTexts(1, [text], None))


def test_an_empty_text_has_no_beginning() -> None:
    with pytest.raises(Refusal, match="invalid_params"):
        inputs(8, [], []).of(PrepareTexts(1, [""], None, truncate=True))
