"""Guesses from earlier text: only where they pay, and never a different answer."""

import pytest

from car_daemon.engine.batching.prompt_lookup import PromptLookup
from car_daemon.ipc.frames import Halt
from tests.daemon.engine.batching.plans import demand_of
from tests.daemon.engine.fakes import END_TOKEN, FakeContext, FakeEngine, run_command

PERIOD = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT = PERIOD * 3


def periodic(history: list[int]) -> int:
    """Return the next token of a repetition with occasional errors."""
    return 7 if len(history) % 29 == 0 else PERIOD[len(history) % len(PERIOD)]


def cheap(rows: int) -> float:
    return 1.0 + 0.01 * rows


def dear(rows: int) -> float:
    return float(rows)


def answer(prompt: list[int], count: int) -> list[int]:
    said = list(prompt)
    while len(said) < len(prompt) + count:
        said.append(periodic(said))
    return said[len(prompt) :]


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    assert PromptLookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]).guess(cheap, 10) == [4, 5, 6, 7, 8, 9, 1]


def test_what_repeats_itself_is_guessed_to_go_on_so() -> None:
    guess = PromptLookup(PERIOD * 2).guess(cheap, 100)
    assert len(guess) > len(PERIOD)
    assert guess == (PERIOD * 10)[: len(guess)]


def test_the_latest_of_several_places_counts() -> None:
    assert PromptLookup([1, 2, 3, 4, 4, 4, 1, 2, 3, 5, 5, 5, 1, 2, 3]).guess(cheap, 100)[:3] == [5, 5, 5]


def test_the_place_of_an_image_is_not_guessed() -> None:
    assert PromptLookup([1, 2, 3, -7, -8, 9, 1, 2, 3]).guess(cheap, 100) == []
    assert PromptLookup([1, 2, 3, 4, -7, -8, 9, 1, 2, 3]).guess(cheap, 100) == [4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_nothing_is_guessed_from_what_was_not_seen(tokens: list[int]) -> None:
    assert PromptLookup(tokens).guess(cheap, 100) == []


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    assert len(PromptLookup(PROMPT * 4).guess(cheap, 5)) == 3
    assert PromptLookup(PROMPT).guess(cheap, 2) == []


def test_nothing_is_guessed_where_rows_cost_what_they_bring() -> None:
    assert PromptLookup(PROMPT).guess(dear, 100) == []


def test_guesses_that_fail_are_given_up_and_tried_again_later() -> None:
    lookup = PromptLookup(PROMPT * 4)
    while guess := lookup.guess(cheap, 100):
        lookup.learn(len(guess), 0)
    tries = 1
    while not lookup.guess(cheap, 100):
        tries += 1
    assert 100 < tries < 200


def test_guesses_that_come_true_grow_longer() -> None:
    lookup = PromptLookup(PROMPT * 8)
    lookup.learn(7, 1)
    first = len(lookup.guess(cheap, 100))
    for _ in range(20):
        lookup.learn(15, 15)
    assert len(lookup.guess(cheap, 100)) > first


def engine_of() -> FakeEngine:
    context = FakeContext(4, context_tokens=256, batch_tokens=64, says=periodic)
    return FakeEngine(context, speculates=True)


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 17, 100, 200])
def test_the_answer_is_the_one_without_guesses(max_tokens: int) -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, max_tokens, namespace="me"))
    engine.finish()
    assert engine.tokens(1) == answer(PROMPT, max_tokens)
    assert engine.ends(1)[0].usage.completion_tokens == max_tokens


def test_it_takes_fewer_steps() -> None:
    engine = engine_of()
    engine.turn(run_command(1, PROMPT, 200))
    engine.finish()
    assert engine.loop.counters["decode_steps"] < 80


def test_several_streams_guess_nothing() -> None:
    engine = engine_of()
    engine.turn(*(run_command(key, PROMPT, 50, namespace=None) for key in range(3)))
    while engine.table.busy:
        engine.turn()
        decoders = demand_of(engine.table).decoding
        assert len(decoders) < 2 or not any(sequence.guess for sequence in engine.table.sequences)
    assert [engine.tokens(key) for key in range(3)] == [answer(PROMPT, 50)] * 3


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
