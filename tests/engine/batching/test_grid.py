"""The cuts of reproducible prompts and answers follow from the request alone."""

from hypothesis import given
from hypothesis import strategies as st

from car_engine.batching.prefix import Prefix, prefix_of
from car_engine.batching.sequences import GRID_TOKENS, Grid, ImageRows, Sequence, SequenceTable
from tests.engine.batching.plans import CONTEXT, costs_of, planner_of
from tests.engine.fakes import begin

LENGTHS = st.integers(1, 600)
SPEEDS = st.floats(1e-6, 0.1)
# Beside it: a length of a prompt to read, 0 for a request that decodes.
OTHERS = st.lists(st.integers(0, 300), max_size=5)


def reproducible(table: SequenceTable, prompt: int, answered: int = 0) -> Sequence:
    """Start a reproducible request, which has to compute its prompt and an answer again."""
    sequence = begin(table, [1] * (prompt + answered))
    sequence.grid = Grid(prompt)
    return sequence


def cuts_of(sequence: Sequence) -> list[tuple[int, int]]:
    """Return the pieces of a request on an engine of its own: (first cell, length)."""
    cuts = []
    while sequence.remaining:
        cuts.append((sequence.cells, sequence.stretch))
        sequence.commit(sequence.stretch)
    return cuts


def pieces(prompt: int, answered: int) -> list[tuple[int, int]]:
    whole = [(start, min(GRID_TOKENS, prompt - start)) for start in range(0, prompt, GRID_TOKENS)]
    return whole + [(prompt + place, 1) for place in range(answered)]


@given(LENGTHS, st.integers(0, 20))
def test_a_prompt_is_cut_at_multiples_and_an_answer_at_every_token(prompt: int, answered: int) -> None:
    assert cuts_of(reproducible(SequenceTable(1, CONTEXT), prompt, answered)) == pieces(prompt, answered)


@given(LENGTHS, st.integers(0, 20), OTHERS, SPEEDS, SPEEDS)
def test_the_cuts_are_the_same_at_any_cost_and_beside_any_requests(
    prompt: int, answered: int, others: list[int], decode: float, prefill: float
) -> None:
    table = SequenceTable(6, CONTEXT)
    for other in others[::2]:
        _begin_other(table, other)
    sequence = reproducible(table, prompt, answered)
    for other in others[1::2]:
        _begin_other(table, other)
    planner = planner_of(costs_of({1: decode, 2: 3 * decode, 8: 4 * decode}, prefill))
    cuts = []
    while sequence.remaining:
        step = planner.plan(table, now=0.0)
        for chunk in step.prefill:
            if chunk.sequence is sequence:
                assert len(step.prefill) == 1
                cuts.append((sequence.cells, chunk.length))
            chunk.sequence.commit(chunk.length)
            if not chunk.sequence.remaining:
                chunk.sequence.accept(1)
    assert cuts == pieces(prompt, answered)


def _begin_other(table: SequenceTable, prompt: int) -> None:
    sequence = begin(table, [1] * max(1, prompt))
    if not prompt:
        sequence.commit(1)
        sequence.accept(2)


@given(st.lists(st.booleans(), min_size=1, max_size=8), SPEEDS, SPEEDS)
def test_every_decoder_has_its_row_and_a_reproducible_one_is_alone(kinds: list[bool], one: float, two: float) -> None:
    table = SequenceTable(len(kinds), CONTEXT)
    for kind in kinds:
        sequence = reproducible(table, 1) if kind else begin(table, [1])
        sequence.commit(1)
        sequence.accept(2)
    batches = planner_of(costs_of({1: one, 2: two})).plan(table, now=0.0).decode
    for batch in batches:
        if any(sequence.grid is not None for sequence in batch.sequences):
            assert batch.rows == 1
    assert sorted(sequence.number for batch in batches for sequence in batch.sequences) == list(range(len(kinds)))


def test_an_image_is_cut_where_the_grid_is() -> None:
    sequence = reproducible(SequenceTable(1, CONTEXT), 200)
    sequence.images.set([ImageRows(30, [0] * 100)], [])
    assert cuts_of(sequence) == [(0, 30), (30, 34), (64, 64), (128, 2), (130, 62), (192, 8)]


def test_the_next_request_in_the_sequence_has_no_cuts() -> None:
    sequence = reproducible(SequenceTable(1, CONTEXT), 200)
    sequence.clear()
    assert sequence.grid is None


def tokens(common: int, total: int, own: int) -> Prefix:
    return prefix_of([1] * common + [own] * (total - common), "me", GRID_TOKENS)


@given(LENGTHS, LENGTHS, LENGTHS)
def test_only_whole_pieces_of_a_prompt_are_reused(common: int, first: int, second: int) -> None:
    common = min(common, first, second)
    kept = tokens(common, first, 2).after([3, 4])
    found = kept.common(tokens(common, second, 5))
    assert found % GRID_TOKENS == 0
    assert common - GRID_TOKENS < found <= common


def test_a_reproducible_request_and_another_reuse_nothing_of_each_other() -> None:
    ordinary = prefix_of([1] * 200, "me")
    assert (ordinary.common(tokens(200, 200, 1)), tokens(200, 200, 1).common(ordinary)) == (0, 0)
