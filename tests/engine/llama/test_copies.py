"""Cells that are copied within a context, which llama.cpp does at the next decode: nobody is to notice."""

import numpy as np
import pytest

from car_engine.llama.context import LlamaContext
from car_engine.llama.sampler import Logits
from tests.engine.llama.conftest import MakeContext

PROMPT = [5, 6, 7]
OTHER = [9, 10, 11, 12]


def fill(context: LlamaContext, number: int, tokens: list[int], start: int = 0) -> None:
    """Add tokens to a sequence that has `start` cells."""
    count = len(tokens)
    positions = list(range(start, start + count))
    assert context.decode(tokens, positions, [number] * count, [False] * count) == 0


def after(context: LlamaContext, number: int) -> Logits:
    """Return the logits of one more token in a sequence."""
    assert context.decode([8], [context.last_position(number) + 1], [number], [True]) == 0
    return context.logits(0).copy()


def alike(one: Logits, other: Logits) -> bool:
    return bool(np.allclose(one, other, atol=1e-3))


@pytest.fixture
def trio(make_context: MakeContext) -> tuple[LlamaContext, Logits]:
    """A context whose sequence 0 holds the prompt and 2 something else, and what follows the prompt."""
    context = make_context(3)
    fill(context, 0, PROMPT)
    expected = after(context, 0)
    fill(context, 2, OTHER)
    assert not alike(after(context, 2), expected)
    context.cut(2, len(OTHER))
    return context, expected


def test_copied_cells_go_on_where_they_are_cut(trio: tuple[LlamaContext, Logits]) -> None:
    context, expected = trio
    context.copy(0, 1)
    assert context.last_position(1) == context.last_position(0) == 3
    context.cut(1, 3)
    assert alike(after(context, 1), expected)
    assert context.last_position(0) == 3


def test_a_copy_is_what_its_source_held_whatever_becomes_of_that(trio: tuple[LlamaContext, Logits]) -> None:
    context, expected = trio
    other = context.save(2)
    context.copy(0, 1)
    context.cut(1, 3)
    context.cut(0, 0)
    context.restore(0, other)
    assert alike(after(context, 1), expected)


def test_a_copy_can_be_saved_before_anything_is_decoded(trio: tuple[LlamaContext, Logits]) -> None:
    context, expected = trio
    context.copy(0, 1)
    context.cut(1, 3)
    saved = context.save(1)
    context.cut(2, 0)
    context.restore(2, saved)
    assert alike(after(context, 2), expected)


def test_what_takes_the_place_of_a_copy_stays(trio: tuple[LlamaContext, Logits]) -> None:
    context, expected = trio
    context.cut(0, 3)
    saved = context.save(0)
    context.copy(2, 1)
    context.cut(1, 0)
    context.restore(1, saved)
    assert alike(after(context, 1), expected)


@pytest.mark.parametrize(("position", "code"), [(99, -1), (4, 0)])
def test_a_copy_that_a_decode_refused_to_make_is_made_later(
    trio: tuple[LlamaContext, Logits], position: int, code: int
) -> None:
    context, expected = trio
    context.copy(0, 1)
    context.cut(1, 3)
    assert context.decode([8], [position], [2], [True]) == code
    assert context.copying == (code != 0)
    saved = context.save(1)
    assert not context.copying
    context.cut(2, 0)
    context.restore(2, saved)
    assert alike(after(context, 2), expected)


def test_a_full_sequence_can_be_copied_and_saved(make_context: MakeContext) -> None:
    context = make_context(3)
    tokens = [5 + place % 50 for place in range(256)]
    fill(context, 0, tokens)
    context.cut(0, 250)
    expected = after(context, 0)
    context.cut(0, 250)
    fill(context, 0, tokens[250:], 250)
    context.copy(0, 1)
    context.restore(2, context.save(1))
    assert context.last_position(2) == 255
    context.cut(2, 250)
    assert alike(after(context, 2), expected)


@pytest.mark.parametrize(("source", "target"), [(0, 0), (0, 1), (0, 3), (-1, 2), (3, 2)])
def test_cells_are_copied_between_two_sequences_of_which_one_is_empty(
    make_context: MakeContext, source: int, target: int
) -> None:
    context = make_context(3)
    fill(context, 0, PROMPT)
    fill(context, 1, PROMPT)
    with pytest.raises(ValueError, match="sequence"):
        context.copy(source, target)
