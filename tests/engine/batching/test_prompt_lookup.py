"""Guesses from earlier text: only where they pay, and never a different answer."""

from collections import Counter
from itertools import pairwise
from math import inf, log2
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.machines import MACHINES
from benchmarks.simulation import Machine
from car_base.ipc.frames import Halt, Park, Resume
from car_engine.batching.costs import MOST_GUESSED, StepCosts
from car_engine.batching.decode import DecodeBatch, Guesser
from car_engine.batching.guesses import PromptLookup
from car_engine.batching.planner import StepPlanner
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import Sequence
from tests.engine.batching.plans import table_of
from tests.engine.fakes import END_TOKEN, FakeContext, FakeEngine, run_command

PERIOD = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT = PERIOD * 3


def periodic(history: list[int]) -> int:
    """Return the next token of a repetition with occasional errors."""
    return 7 if len(history) % 29 == 0 else PERIOD[len(history) % len(PERIOD)]


def answer(prompt: list[int], count: int) -> list[int]:
    said = list(prompt)
    while len(said) < len(prompt) + count:
        said.append(periodic(said))
    return said[len(prompt) :]


def found(tokens: list[int], most: int) -> list[int]:
    return PromptLookup(tokens).guess(most)


CHEAP = StepCosts({1: 1.0, 64: 1.6})
CELLS, STATES = Memory(), Memory(states=True, rollback=7)
DEAR = StepCosts({1: 1.0, 64: 64.0})
RISING = StepCosts({1: 1.0, 2: 1.2, 4: 1.5, 8: 2.2, 16: 3.2, 32: 5.0})


def guess(sequences: list[Sequence], costs: StepCosts, room: int = 100, target: float = inf) -> int:
    """Set the guesses of the sequences of one decode, and return its rows for guesses of each."""
    batch = DecodeBatch(sequences, [])
    Guesser(costs, 64, target, MOST_GUESSED).plan(batch, room + 2, costs.decode(len(sequences)))
    return batch.guessed


def one(lookup: PromptLookup, costs: StepCosts, room: int = 100, target: float = inf) -> list[int]:
    """Return the guess of a lone sequence."""
    sequence = decoding(lookup)
    assert guess([sequence], costs, room, target) == len(sequence.guess)
    return sequence.guess


def decoding(lookup: PromptLookup | None, number: int = 0) -> Sequence:
    sequence = Sequence(number)
    sequence.start([1], 1)
    sequence.commit(1)
    sequence.accept(2)
    sequence.lookup = lookup
    return sequence


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    assert found([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], 7) == [4, 5, 6, 7, 8, 9, 1]


def test_what_repeats_itself_is_guessed_to_go_on_so() -> None:
    assert found(PERIOD * 2, 31) == (PERIOD * 10)[:31]


def test_the_latest_of_several_places_counts() -> None:
    assert found([1, 2, 3, 4, 4, 4, 1, 2, 3, 5, 5, 5, 1, 2, 3], 3) == [5, 5, 5]


def test_the_place_of_an_image_is_not_guessed() -> None:
    assert found([1, 2, 3, -7, -8, 9, 1, 2, 3], 9) == []
    assert found([1, 2, 3, 4, -7, -8, 9, 1, 2, 3], 9) == [4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_nothing_is_guessed_from_what_was_not_seen(tokens: list[int]) -> None:
    assert found(tokens, 9) == []


def places_after(tokens: list[int], few: list[int]) -> list[int]:
    """Return the places after earlier occurrences of a few tokens."""
    places = range(len(few), len(tokens))
    return [place for place in places if tokens[place - len(few) : place] == few]


@given(st.lists(st.one_of(st.integers(0, 3), st.sampled_from([255, 256, 65_793, 2**31 - 1])), max_size=60))
def test_a_guess_is_what_followed_the_last_earlier_occurrence(tokens: list[int]) -> None:
    after = (places_after(tokens, tokens[-length:]) for length in (3, 2) if len(tokens) > length)
    places = next((each for each in after if each), [])
    expected = tokens[places[-1] :][:5] if places else []
    assert found(tokens, 5)[: len(expected)] == expected
    assert bool(found(tokens, 5)) == bool(expected)


def test_far_behind_in_a_long_text_nothing_is_searched_and_near_the_end_it_is_found() -> None:
    far = [1, 2, 3, 4, *range(10, 40_000), 1, 2, 3]
    assert found(far, 1) == []
    assert found([*range(10, 40_000), 1, 2, 3, 4, *range(50_000, 60_000), 1, 2, 3], 1) == [4]


def test_a_longer_occurrence_is_trusted_more() -> None:
    assert PromptLookup(PERIOD * 2).expected(1)[1] > PromptLookup([1, 2, 3, 4, 9, 1, 2, 3]).expected(1)[1]


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    assert len(one(PromptLookup(PROMPT * 4), CHEAP, 5)) == 5
    assert one(PromptLookup(PROMPT), CHEAP, 0) == []


def test_nothing_is_guessed_where_rows_cost_what_they_bring() -> None:
    assert one(PromptLookup(PROMPT), DEAR) == []


@pytest.mark.parametrize("busy", [1.79, 1.9, 2.0])
def test_guesses_whose_cost_was_measured_on_a_busy_machine_are_found_to_pay(busy: float) -> None:
    costs, decodes = StepCosts({rows: rows ** log2(busy) for rows in (1, 2, 4, 8, 16, 32)}), 0
    guesser = Guesser(costs, 64, inf, MOST_GUESSED)
    batch = DecodeBatch([decoding(PromptLookup(PROMPT * 9))], [])
    while not all(guessed_rows(guesser, batch, costs) for _ in range(3)):
        decodes += 1
        assert decodes < 10 * 128, "once in 128 decodes their cost is seen"


def test_a_text_that_seldom_repeats_itself_is_tried_where_it_does() -> None:
    costs = StepCosts({1: 1.0, 64: 64.0})
    guesser, plain = Guesser(costs, 64, inf, MOST_GUESSED), decoding(PromptLookup([1, 2, 3]))
    for _ in range(500):
        assert guessed_rows(guesser, DecodeBatch([plain], []), costs) == 0
    assert guessed_rows(guesser, DecodeBatch([decoding(PromptLookup(PROMPT))], []), costs) == 1


def guessed_rows(guesser: Guesser, batch: DecodeBatch, costs: StepCosts) -> int:
    """Plan a decode, let it take hardly longer with guesses, and return its rows for guesses."""
    batch.let_guess(0)
    guesser.plan(batch, 1000, costs.decode(1))
    costs.decoded(batch.rows, 0.9 + 0.1 * batch.rows)
    return batch.guessed


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("target", [3.0, 8.0, 20.0])
def test_the_decodes_of_a_step_with_guesses_take_at_most_its_target_together(count: int, target: float) -> None:
    # So dear are several sequences in one decode that each has its own.
    costs = StepCosts({1: 1.0, 2: 1.7, 16: 2.5, 32: 4.0})
    batches = [DecodeBatch([decoding(PromptLookup(PROMPT * 9), number)], []) for number in range(count)]
    guesser = Guesser(costs, 64, target, MOST_GUESSED)
    for batch in batches:
        guesser.plan(batch, 100, count * costs.decode(1))
    seconds = [costs.decode(batch.rows) for batch in batches]
    assert sum(seconds) <= max(target, 2 * count) * 1.001
    assert all(batch.guessed for batch in batches)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_text_in_which_every_guess_is_wrong_loses_less_than_a_twentieth_of_160_tokens(machine: Machine) -> None:
    costs, lookup, lost = machine.costs, PromptLookup(PROMPT * 9), 0.0
    for _ in range(160):
        tried = len(one(lookup, costs, target=0.12))
        lost += costs.decode(1 + tried) - costs.decode(1)
        goes_on(lookup, 1, right=False)
    assert lost < 0.05 * 160 * costs.decode(1)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_text_that_repeats_itself_is_written_no_slower_and_faster_when_rows_are_cheap(machine: Machine) -> None:
    costs, lookup, spent, tokens = machine.costs, PromptLookup(PROMPT * 9), 0.0, 0
    while tokens < 160:
        tried = len(one(lookup, costs, target=0.12))
        spent, tokens = spent + costs.decode(1 + tried), tokens + 1 + tried
        goes_on(lookup, 1 + tried)
    gain = tokens * costs.decode(1) / spent
    assert gain >= (2 if costs.decode(8) < 3 * costs.decode(1) else 1)


def goes_on(lookup: PromptLookup, tokens: int, *, right: bool = True) -> None:
    """Let a repetition go on, or say another token and begin it again."""
    for _ in range(tokens):
        (expected,) = lookup.guess(1)
        lookup.add(expected if right else 1000 + len(lookup.tokens))
        while not lookup.follows():
            lookup.add(PERIOD[len(lookup.tokens) % len(PERIOD)])


def test_the_first_decode_after_a_prompt_guesses_nothing_and_the_next_one_does() -> None:
    table = table_of(0, 100)
    costs = StepCosts({1: 0.010, 64: 0.016}, {1: 0.001, 512: 0.100})
    planner = StepPlanner(costs, 512, step_target=0.050, idle_target=0.2, memory=Memory())
    table.sequences[0].lookup = PromptLookup(PROMPT * 9)
    guessed: list[int | None] = []
    for turn in range(4):
        step = planner.plan(table, now=0.0)
        guessed.append(step.decode[0].guessed if step.decode else None)
        if turn == 2:
            table.sequences[1].clear()
    assert guessed[:3] == [0, None, 0]
    assert guessed[3]


def test_guesses_that_would_be_wrong_are_given_up_though_none_was_tried() -> None:
    lookup = PromptLookup(PROMPT * 8)
    assert one(lookup, RISING)
    goes_on(lookup, 60, right=False)
    assert one(lookup, RISING) == []


def test_guesses_grow_longer_the_longer_a_repetition_goes_on() -> None:
    lookup = PromptLookup([*PROMPT, 50, *PERIOD[:4]])
    first = len(one(lookup, RISING))
    goes_on(lookup, 40)
    assert 0 < first < len(one(lookup, RISING))


def test_several_sequences_guess_where_the_rows_cost_next_to_nothing() -> None:
    sequences = [decoding(PromptLookup(PROMPT), number) for number in range(4)]
    rows = guess(sequences, CHEAP)
    assert rows > 1
    assert all(len(sequence.guess) == rows for sequence in sequences)
    assert len(sequences) * (1 + rows) <= 64


def test_a_sequence_that_may_not_guess_keeps_the_others_from_it() -> None:
    sequences = [decoding(PromptLookup(PROMPT)), decoding(None, 1)]
    assert guess(sequences, CHEAP) == 0


def engine_of(memory: Memory = CELLS) -> FakeEngine:
    context = FakeContext(4, context_tokens=256, batch_tokens=64, says=periodic, memory=memory)
    return FakeEngine(context, speculates=True)


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 17, 100, 200])
@pytest.mark.parametrize("memory", [CELLS, STATES])
def test_the_answer_is_the_one_without_guesses(max_tokens: int, memory: Memory) -> None:
    engine = engine_of(memory)
    engine.turn(run_command(1, PROMPT, max_tokens, namespace="me"))
    engine.finish()
    assert engine.tokens(1) == answer(PROMPT, max_tokens)
    assert engine.ends(1)[0].usage.completion_tokens == max_tokens


def promised(engine: FakeEngine, request: int) -> list[float]:
    """Return what the guesses of a request promise after its first token."""
    engine.turn(run_command(request, PROMPT, 100))
    (lookup,) = [each.lookup for each in engine.table.sequences if each.lookup is not None]
    while len(lookup.tokens) == len(PROMPT):
        engine.turn()
    return lookup.expected(31)


def test_what_the_guesses_of_a_request_promise_does_not_depend_on_requests_before_it() -> None:
    alone, after = engine_of(), engine_of()
    for request in range(4):
        after.turn(run_command(request, PROMPT, 200))
        after.finish()
    assert after.loop.counters["lookup_right"] > 100
    assert promised(after, 9) == promised(alone, 9)


def test_states_that_go_back_by_some_rows_are_guessed_as_far_and_others_never() -> None:
    steps = []
    for rollback in (0, 1, 3, 7):
        memory = Memory(states=True, rollback=rollback)
        context = FakeContext(4, context_tokens=256, batch_tokens=64, says=periodic, memory=memory)
        engine = FakeEngine(context, speculates=True, costs=StepCosts({1: 0.010, 64: 0.011}))
        engine.turn(run_command(1, PROMPT, 200, namespace="me"))
        engine.finish()
        assert engine.tokens(1) == answer(PROMPT, 200)
        assert max(len(batch.tokens) for batch in engine.context.batches[1:]) == 1 + rollback
        steps.append(engine.loop.counters["decode_steps"])
    assert steps[0] == 199
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 50


def test_a_token_that_ends_an_answer_is_not_guessed() -> None:
    lookup = PromptLookup([5, 6, END_TOKEN, 7, 5, 6], ends=frozenset([END_TOKEN]))
    assert lookup.guess(4) == []
    assert PromptLookup([5, 6, END_TOKEN, 7, 5, 6]).guess(2) == [END_TOKEN, 7]


def test_it_takes_fewer_steps() -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, 200))
    engine.finish()
    assert engine.loop.counters["decode_steps"] < 80


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_several_streams_have_the_answers_without_guesses_in_fewer_steps(streams: int) -> None:
    context = FakeContext(4, context_tokens=256, batch_tokens=64, says=periodic)
    engine = FakeEngine(context, speculates=True, costs=StepCosts({1: 0.010, 64: 0.011}))
    engine.turn(
        *(run_command(key, [*range(50, 50 + key), *PROMPT], 50 + key, namespace=None) for key in range(streams))
    )
    engine.finish()
    for key in range(streams):
        assert engine.tokens(key) == answer([*range(50, 50 + key), *PROMPT], 50 + key)
    assert engine.loop.counters["decode_steps"] < 45
    for sequence in engine.table.sequences:
        assert engine.context.last_position(sequence.number) == sequence.cells - 1


def test_a_parked_request_guesses_again_once_it_resumes() -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, 100, namespace="me"))
    for _ in range(6):
        engine.turn()
    engine.turn(Park(1))
    engine.turn(Resume(1))
    before = engine.loop.counters["decode_steps"]
    engine.finish()
    assert engine.tokens(1) == answer(PROMPT, 100)
    assert engine.loop.counters["decode_steps"] - before < 50


def test_an_end_inside_a_guess_ends_the_request_there() -> None:
    def ends(history: list[int]) -> int:
        return END_TOKEN if len(history) == 70 else periodic(history)

    engine = FakeEngine(FakeContext(2, context_tokens=256, batch_tokens=64, says=ends), speculates=True)
    engine.turn(run_command(1, PROMPT, 200, namespace="me"))
    engine.finish()
    tokens = engine.tokens(1)
    assert tokens == [*answer(PROMPT, len(tokens) - 1), END_TOKEN]
    for sequence in engine.table.sequences:
        assert engine.context.last_position(sequence.number) == sequence.cells - 1


def test_a_stop_string_inside_a_guess_ends_the_request_there() -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, 200, stop=["ibf"], namespace="me"))
    engine.finish()
    assert engine.ends(1)[0].stop == "ibf"
    engine.turn(run_command(2, PROMPT, 20, namespace="me"))
    engine.finish()
    assert engine.tokens(2) == answer(PROMPT, 20)


def test_a_halt_leaves_no_guess_behind() -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, 200, namespace="me"))
    for _ in range(6):
        engine.turn()
    engine.turn(Halt(1, deadline=False))
    for sequence in engine.table.sequences:
        assert engine.context.last_position(sequence.number) == sequence.cells - 1


def test_the_last_cells_of_a_context_are_not_guessed_over() -> None:
    engine = FakeEngine(FakeContext(1, context_tokens=64, batch_tokens=64, says=periodic), speculates=True)
    engine.turn(run_command(1, PROMPT, 40))
    engine.finish()
    assert engine.tokens(1) == answer(PROMPT, 40)


def test_sampled_tokens_have_the_distribution_that_they_have_without_guesses() -> None:
    following = {3: 4, 4: 5, 5: 6, 6: 3}
    likely, chance = 0.7, Random(1)

    def samples(history: list[int]) -> int:
        expected = following.get(history[-1], 3)
        return expected if chance.random() < likely else chance.choice([3, 4, 5, 6])

    engine = FakeEngine(
        FakeContext(2, context_tokens=2048, batch_tokens=64, says=samples),
        speculates=True,
        costs=StepCosts({1: 0.010, 64: 0.012}),
    )
    counts: Counter[tuple[int, int]] = Counter()
    for key in range(20):
        engine.turn(run_command(key, [3, 4, 5, 6] * 4, 400, namespace=None))
        engine.finish()
        counts.update(pairwise(engine.tokens(key)))
    assert engine.loop.counters["decode_steps"] < 0.7 * 20 * 400, "guesses came true"
    expected = {
        (last, token): sum(counts[last, each] for each in following) * (likely * (token == following[last]) + 0.3 / 4)
        for last in following
        for token in following
    }
    chi_square = sum((counts[pair] - count) ** 2 / count for pair, count in expected.items())
    assert chi_square < 32.9, "the one in a thousand of 12 degrees of freedom"
