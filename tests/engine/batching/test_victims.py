"""Which idle sequence is emptied for a prompt that goes on from none, and what is saved."""

from array import array

import pytest

from car_base.ipc.types import NO_ADAPTERS
from car_engine.batching.reuse.expected import cells_of
from tests.engine.batching.test_prefix_cache import ask, cached, engine_of
from tests.engine.fakes import FakeContext, FakeEngine, run_command, solo


def conversation(number: int, words: int = 120) -> list[int]:
    """Return a prompt that begins like no other."""
    return [number, *(1 + (number * 3 + place * (2 * number + 1)) % 26 for place in range(words))]


def filled(sequences: int = 4, saved_bytes: int = 0) -> FakeEngine:
    """Return an engine whose sequences hold the conversations 1, 2, ... in this order of use."""
    engine = engine_of(sequences, saved_bytes=saved_bytes)
    prompts = [conversation(number) for number in range(1, sequences + 1)]
    for key, prompt in enumerate(prompts, 1):
        ask(engine, key, prompt)
    return engine


def continued(number: int) -> list[int]:
    """Return the next turn of a conversation."""
    prompt = conversation(number)
    return [*prompt, *solo(prompt, 5), 7, 7]


def expect(engine: FakeEngine, key: int, prompt: list[int]) -> None:
    engine.commands.expected.note(key, array("i", prompt).tobytes(), cells_of("me", NO_ADAPTERS))


def test_the_sequence_that_was_used_longest_ago_is_emptied() -> None:
    engine = filled()
    ask(engine, 10, continued(1))
    ask(engine, 11, conversation(9))
    assert ask(engine, 12, continued(3)) > 0
    assert ask(engine, 13, continued(2)) == 0


def test_a_sequence_that_holds_nothing_is_taken_before_one_with_cells() -> None:
    engine = engine_of(3)
    for key in (1, 2, 3):
        ask(engine, key, conversation(key))
    assert all(ask(engine, 10 + key, continued(key)) > 0 for key in (1, 2, 3))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_sequence_that_a_waiting_request_begins_like_outlives_the_others(number: int) -> None:
    engine = filled()
    expect(engine, 50, continued(number))
    for key in range(20, 26):
        ask(engine, key, conversation(key))
    assert ask(engine, 50, continued(number)) > 0


def test_saved_cells_that_a_waiting_request_begins_like_outlive_the_others() -> None:
    engine = filled(1, saved_bytes=300)
    ask(engine, 10, conversation(2))
    expect(engine, 50, continued(1))
    for key in range(20, 26):
        ask(engine, key, conversation(key))
    assert ask(engine, 50, continued(1)) > 0


def test_a_request_that_started_or_was_cancelled_holds_nothing_back() -> None:
    engine = filled()
    expect(engine, 50, continued(1))
    engine.commands.expected.drop(50)
    expect(engine, 51, continued(2))
    assert ask(engine, 51, continued(2)) > 0
    assert engine.commands.expected.prompts == []


def test_of_very_many_waiting_prompts_some_are_remembered_and_the_oldest_of_these_are_looked_at() -> None:
    engine = filled()
    expected = engine.commands.expected
    for key in range(1000):
        expect(engine, key, conversation(key % 20 + 1))
    prompts = expected.prompts
    assert (len(prompts), repr(expected)) == (16, "<Expected 64 prompts>")
    assert prompts[0][1].tokens.tolist() == conversation(936 % 20 + 1)


def test_a_waiting_request_of_another_namespace_holds_nothing_back() -> None:
    engine = filled()
    engine.commands.expected.note(50, array("i", continued(1)).tobytes(), cells_of("you", NO_ADAPTERS))
    ask(engine, 11, conversation(9))
    assert ask(engine, 12, continued(1)) == 0


def test_cells_belong_to_the_adapters_that_change_them_in_any_order() -> None:
    assert cells_of("me", (("b", 1.0), ("a", 0.5))) == cells_of("me", (("a", 0.5), ("c", 0.0), ("b", 1.0)))
    assert cells_of("me", (("a", 0.5),)) != cells_of("me", (("a", 1.0),)) != cells_of("you", (("a", 1.0),))


def test_short_prefixes_are_saved_where_that_costs_less_than_computing_them() -> None:
    engine = engine_of(1, saved_bytes=100_000)
    ask(engine, 1, conversation(1, words=30))
    ask(engine, 2, conversation(2))
    first = conversation(1, words=30)
    assert ask(engine, 3, [*first, *solo(first, 5), 7, 7]) >= len(first)


def test_prefixes_that_cost_more_to_move_than_to_compute_are_computed_again() -> None:
    context = FakeContext(1, 512, batch_tokens=64)
    context.cell_s = {"save": 1.0, "restore": 1.0}
    engine = FakeEngine(context, saved_bytes=100_000)
    ask(engine, 1, conversation(1))
    ask(engine, 2, conversation(2))
    assert ask(engine, 3, continued(1)) == 0
    assert (context.saves, context.restored) == (0, 0)


def test_twelve_conversations_on_four_sequences_compute_no_token_twice() -> None:
    engine = engine_of(4, saved_bytes=100_000)
    histories = {user: conversation(user, words=40) for user in range(1, 13)}
    for turn in range(4):
        for first in range(1, 13, 4):
            keys = {turn * 100 + user: user for user in range(first, first + 4)}
            engine.turn(*(run_command(key, histories[user], 5, namespace="me") for key, user in keys.items()))
            engine.finish()
            for key, user in keys.items():
                assert cached(engine, key, histories[user]) >= (len(histories[user]) - 8 if turn else 0)
                histories[user] += [*solo(histories[user], 5), 20, 21, 22, 23, 24, 25]


def test_the_end_of_a_request_names_the_waiting_ones_that_would_go_on_from_idle_cells() -> None:
    engine = filled(2)
    for key, number in ((50, 1), (51, 9), (52, 3)):
        expect(engine, key, continued(number))
    engine.turn(run_command(3, conversation(3), 5, namespace="me"))
    engine.finish()
    assert engine.resident == [[50, 52]], "conversation 2 was emptied for the third, because nothing waits for it"


def test_a_request_that_has_less_in_idle_cells_than_it_computes_is_not_named() -> None:
    engine = filled(2)
    expect(engine, 50, [*conversation(3), *conversation(4, words=200)])
    ask(engine, 3, conversation(3))
    assert engine.resident == []


def test_a_request_whose_cells_are_saved_as_well_is_not_named() -> None:
    engine = engine_of(1, saved_bytes=100_000)
    ask(engine, 1, conversation(1))
    ask(engine, 2, conversation(2))
    expect(engine, 50, continued(1))
    expect(engine, 51, continued(2))
    ask(engine, 3, [*conversation(1), 3])
    assert engine.resident == []


@pytest.mark.parametrize(("move_s", "named"), [(1e-9, []), (1.0, [[50]])])
def test_a_request_whose_cells_would_be_saved_and_restored_for_less_than_it_computes_is_not_named(
    move_s: float, named: list[list[int]]
) -> None:
    context = FakeContext(1, 512, batch_tokens=64)
    context.cell_s = {"save": move_s, "restore": move_s}
    engine = FakeEngine(context, saved_bytes=100_000)
    ask(engine, 1, conversation(1))
    ask(engine, 2, conversation(2))
    ask(engine, 3, [*conversation(1), 3])
    expect(engine, 50, continued(4))
    ask(engine, 4, conversation(4))
    assert engine.resident == named
