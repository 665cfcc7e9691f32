"""Prefix reuse on the ledger, where wrong cells give a different answer."""

import tracemalloc
from array import array

import numpy as np
import pytest

from car_base.ipc.frames import Halt
from car_base.ipc.types import NO_ADAPTERS
from car_engine.batching.prefix import Checkpoint, Prefix, prefix_of
from car_engine.batching.reuse.expected import cells_of
from car_engine.batching.reuse.index import Memory
from tests.engine.fakes import END_TOKEN, FakeContext, FakeEngine, run_command, solo
from tests.pace import calls

CONTEXT = 512
SYSTEM = [1 + place * 7 % 26 for place in range(200)]


def question(number: int, words: int = 6) -> list[int]:
    """Return a prompt that begins with the system prompt and continues differently."""
    return SYSTEM + [1 + (number * 5 + place * 3) % 26 for place in range(words)]


def short(number: int) -> list[int]:
    """Return a prompt that begins with half of the system prompt."""
    return SYSTEM[:100] + [1 + (number * 5 + place * 3) % 26 for place in range(6)]


CELLS = Memory()
STATES = Memory(states=True)
WINDOWS = Memory(windows=True)
BOTH = Memory(states=True, windows=True)
ON_MARKS = pytest.mark.parametrize("memory", [STATES, WINDOWS, BOTH])
ON_ALL = pytest.mark.parametrize("memory", [CELLS, STATES, WINDOWS, BOTH])


def engine_of(
    sequences: int = 4, *, saved_bytes: int = 100_000, memory: Memory = CELLS, restores: bool = True
) -> FakeEngine:
    context = FakeContext(sequences, CONTEXT, batch_tokens=64, memory=memory, restores=restores)
    return FakeEngine(context, saved_bytes=saved_bytes)


def ask(engine: FakeEngine, key: int, prompt: list[int], namespace: str | None = "me", max_tokens: int = 5) -> int:
    """Run a request to its end, check its answer, and return its cached tokens."""
    engine.turn(run_command(key, prompt, max_tokens, namespace=namespace))
    engine.finish()
    return cached(engine, key, prompt, max_tokens)


def cached(engine: FakeEngine, key: int, prompt: list[int], max_tokens: int = 5) -> int:
    assert engine.tokens(key) == solo(prompt, max_tokens)
    (end,) = engine.ends(key)
    assert end.usage.cached_tokens == sum(update.cached for update in engine.updates[key])
    return end.usage.cached_tokens


def prefilled(engine: FakeEngine) -> int:
    """Return how many prompt tokens were decoded in all."""
    return int(engine.loop.counters["prefill_tokens"])


def test_a_second_request_is_spared_what_it_shares_with_the_first() -> None:
    engine = engine_of()
    assert ask(engine, 1, question(1)) == 0
    assert ask(engine, 2, question(2)) == len(SYSTEM)
    assert prefilled(engine) == 206 + 6


def test_the_same_prompt_again_computes_its_last_token_alone() -> None:
    engine = engine_of()
    ask(engine, 1, question(1))
    assert ask(engine, 2, question(1)) == 205


def test_an_answer_of_one_token_reports_its_cached_cells_too() -> None:
    engine = engine_of()
    ask(engine, 1, question(1))
    assert ask(engine, 2, question(1), max_tokens=1) == 205


def test_a_conversation_goes_on_from_its_own_answer() -> None:
    engine = engine_of()
    ask(engine, 1, question(1))
    first = question(1) + solo(question(1), 5)
    more = [*first, 3, 4]
    assert ask(engine, 2, more) in (len(first) - 1, len(first))


def test_a_conversation_stays_in_its_sequence() -> None:
    engine = engine_of()
    for key, turn in enumerate((question(1), question(1) + [9] * 20, question(1) + [9] * 40)):
        ask(engine, key, turn)
    assert [bool(cells) for cells in engine.context.cells] == [True, False, False, False]


@pytest.mark.parametrize(("first", "second"), [("me", "you"), ("me", None), (None, "me"), (None, None)])
def test_cells_are_not_reused_across_namespaces(first: str | None, second: str | None) -> None:
    engine = engine_of(sequences=1)
    ask(engine, 1, question(1), first)
    assert ask(engine, 2, question(1), second) == 0


def test_a_few_tokens_in_common_are_computed_again() -> None:
    engine = engine_of()
    ask(engine, 1, [1] * 15 + [2] * 9)
    assert ask(engine, 2, [1] * 15 + [3] * 9) == 0


def test_a_prefix_that_had_to_leave_its_sequence_comes_back_from_host_memory() -> None:
    engine = engine_of(sequences=1)
    ask(engine, 1, question(1))
    ask(engine, 2, [5] * 180)
    assert ask(engine, 3, question(3)) == len(SYSTEM)
    assert ask(engine, 4, [5] * 190) == 180
    assert engine.loop.counters["evicted_sequences"] == 3
    assert engine.loop.counters["saved_bytes"] > 0


def test_without_host_memory_it_is_computed_again() -> None:
    engine = engine_of(sequences=1, saved_bytes=0)
    ask(engine, 1, question(1))
    ask(engine, 2, [5] * 180)
    assert ask(engine, 3, question(3)) == 0
    assert engine.loop.counters["saved_bytes"] == 0


def test_requests_that_come_together_compute_what_they_share_once() -> None:
    engine = engine_of(sequences=4)
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(4)))
    engine.finish()
    assert [cached(engine, key, question(key)) for key in range(4)] == [0] + [len(SYSTEM)] * 3
    assert prefilled(engine) == len(SYSTEM) + 4 * 6


def test_without_host_memory_they_still_do() -> None:
    engine = engine_of(sequences=4, saved_bytes=0)
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(4)))
    engine.finish()
    assert [cached(engine, key, question(key)) for key in range(4)] == [0] + [len(SYSTEM)] * 3


def test_a_request_that_joins_a_running_one_copies_its_cells() -> None:
    engine = engine_of()
    engine.turn(run_command(1, question(1), 40, namespace="me"))
    while engine.number_of(1) is not None and not engine.tokens(1):
        engine.turn()
    assert ask(engine, 2, question(2)) == len(SYSTEM)
    assert cached(engine, 1, question(1), 40) == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_follower_computes_the_rest_itself_when_its_leader_is_halted(turns: int) -> None:
    engine = engine_of()
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(2)))
    for _ in range(turns):
        engine.turn()
    engine.halt(0)
    engine.finish()
    done = max((update.prompt_done for update in engine.updates[0]), default=0)
    assert cached(engine, 1, question(1)) == min(done, len(SYSTEM))


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_follower_goes_on_when_its_leader_is_parked(turns: int) -> None:
    engine = engine_of()
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(2)))
    for _ in range(turns):
        engine.turn()
    engine.park(0)
    engine.finish()
    cached(engine, 1, question(1))
    engine.resume(0)
    engine.finish()
    cached(engine, 0, question(0))


def test_a_follower_that_is_halted_or_parked_leaves_its_leader_alone() -> None:
    engine = engine_of()
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(3)))
    engine.halt(1)
    engine.park(2)
    engine.resume(2)
    engine.finish()
    assert cached(engine, 0, question(0)) == 0
    cached(engine, 2, question(2))


def test_followers_may_follow_each_other() -> None:
    engine = engine_of()
    chain = [SYSTEM[: 50 * (key + 1)] + [1 + key] * 20 for key in range(4)]
    engine.turn(*(run_command(key, prompt, 5, namespace="me") for key, prompt in enumerate(chain)))
    engine.finish()
    assert all(cached(engine, key, prompt) >= 50 * key for key, prompt in enumerate(chain))


def test_where_cells_cannot_be_put_back_they_are_computed() -> None:
    engine = engine_of(restores=False)
    engine.turn(*(run_command(key, short(key), 5, namespace="me") for key in range(3)))
    engine.finish()
    assert [cached(engine, key, short(key)) for key in range(3)] == [0, 0, 0]


def together(engine: FakeEngine, *prompts: list[int], max_tokens: int = 5) -> list[int]:
    """Run requests that come at once to their end, and return the cached tokens of each."""
    keys = range(100, 100 + len(prompts))
    engine.turn(
        *(run_command(key, prompt, max_tokens, namespace="me") for key, prompt in zip(keys, prompts, strict=True))
    )
    engine.finish()
    return [cached(engine, key, prompt, max_tokens) for key, prompt in zip(keys, prompts, strict=True)]


@pytest.mark.parametrize(("length", "copies"), [(CONTEXT // 4, 1), (CONTEXT // 4 - 8, 0)])
def test_a_leader_of_a_quarter_of_a_context_is_copied_and_a_shorter_one_saved_and_put_back(
    length: int, copies: int
) -> None:
    engine = engine_of()
    leader, follower = SYSTEM[:length], [*SYSTEM[: length - 6], 9, 9]
    assert together(engine, leader, follower) == [0, length - 6]
    assert (engine.context.copies, engine.context.saves) == (copies, 1 - copies)


def test_what_several_others_share_is_saved_once() -> None:
    engine = engine_of()
    assert together(engine, *(question(key) for key in range(4))) == [0] + [len(SYSTEM)] * 3
    assert (engine.context.copies, engine.context.saves) == (0, 1)


def test_without_host_memory_it_is_copied_for_each() -> None:
    engine = engine_of(saved_bytes=0)
    assert together(engine, *(question(key) for key in range(4))) == [0] + [len(SYSTEM)] * 3
    assert (engine.context.copies, engine.context.saves) == (3, 0)


def crowd(engine: FakeEngine) -> None:
    """Let requests with nothing in common use every sequence."""
    for key in range(200, 200 + 3 * len(engine.table.sequences)):
        ask(engine, key, [key % 26 + 1] * 180)


@ON_ALL
def test_a_conversation_computes_only_what_each_turn_adds(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    history = question(1)
    for key in range(5):
        before = prefilled(engine)
        ask(engine, key, history)
        assert prefilled(engine) - before <= (len(history) if key == 0 else 23)
        history = [*history, *solo(history, 5), *[1 + (key + place) % 26 for place in range(20)]]


@ON_ALL
def test_the_same_prompt_again_computes_its_last_token_alone_from_any_memory(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    ask(engine, 1, question(1))
    assert ask(engine, 2, question(1)) == 205


@ON_ALL
def test_a_chat_goes_on_before_the_last_tokens_that_its_next_turn_lacks(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    asking = [20, 21, 22]
    prompt = [*question(1), *asking]
    engine.turn(run_command(1, prompt, 5, namespace="me", own=(len(asking),)))
    engine.finish()
    assert ask(engine, 2, [*question(1), 9, 9, 9]) == len(question(1))


@ON_ALL
def test_another_chat_goes_on_behind_the_beginning_that_both_have_though_the_first_was_read_to_its_end(
    memory: Memory,
) -> None:
    engine = engine_of(memory=memory)
    first, second = question(1), question(2)
    engine.turn(run_command(1, first, 5, namespace="me", own=(1, len(first) - len(SYSTEM))))
    engine.finish()
    assert ask(engine, 2, second) == len(SYSTEM)


@ON_ALL
def test_a_branch_leaves_the_conversation_that_it_parts_from(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    trunk = [1 + place * 11 % 26 for place in range(300)]
    ask(engine, 1, trunk)
    ask(engine, 2, [*trunk[:100], *[3 + place * 5 % 23 for place in range(100)]])
    more = [*trunk, *solo(trunk, 5), 3, 4]
    assert ask(engine, 3, more) >= len(trunk)


@ON_ALL
def test_requests_that_come_together_share_what_they_begin_with(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    assert together(engine, *(question(key) for key in range(4))) == [0] + [len(SYSTEM)] * 3


@ON_MARKS
def test_a_shared_begin_is_found_from_its_second_use_on(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    found = [ask(engine, key, question(key)) for key in range(3)]
    assert found == [0, 0, len(SYSTEM)]


@ON_MARKS
def test_a_shared_begin_is_found_at_once_if_the_second_prompt_waits_already(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.commands.expected.note(2, array("i", question(2)).tobytes(), cells_of("me", NO_ADAPTERS))
    assert [ask(engine, key, question(key)) for key in (1, 2)] == [0, len(SYSTEM)]


@ON_MARKS
def test_a_conversation_that_left_comes_back_with_its_marks(memory: Memory) -> None:
    engine = engine_of(sequences=1, memory=memory)
    ask(engine, 1, question(1))
    crowd(engine)
    assert engine.context.restored == 0
    assert ask(engine, 3, question(1)) == 205
    assert engine.context.restored == 1


@ON_MARKS
def test_without_host_memory_a_sequence_goes_on_at_its_end_alone(memory: Memory) -> None:
    engine = engine_of(memory=memory, saved_bytes=0)
    ask(engine, 1, question(1))
    more = [*question(1), *solo(question(1), 5), 3, 4]
    assert ask(engine, 2, more) >= len(question(1))
    assert ask(engine, 3, question(1)) == 0
    assert engine.context.states_saved == 0


@ON_MARKS
def test_a_long_prompt_is_marked_so_that_an_edit_computes_little(memory: Memory) -> None:
    context = FakeContext(2, 1200, batch_tokens=64, memory=memory)
    engine = FakeEngine(context, saved_bytes=1_000_000)
    prompt = [1 + place * 11 % 26 for place in range(1000)]
    ask(engine, 1, prompt)
    assert ask(engine, 2, [*prompt[:700], *[2 + place * 7 % 24 for place in range(100)]]) == 512


@ON_MARKS
def test_a_mark_that_costs_more_than_a_hundredth_of_the_reading_is_not_made(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.moves.checkpoint = 1e6
    ask(engine, 1, question(1))
    assert engine.context.states_saved == 0


@ON_MARKS
def test_a_follower_whose_leader_is_halted_goes_on_from_the_last_mark(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.turn(*(run_command(key, question(key), 5, namespace="me") for key in range(2)))
    engine.turn()
    engine.halt(0)
    engine.finish()
    done = max(update.prompt_done for update in engine.updates[0])
    assert cached(engine, 1, question(1)) == done > 0


@ON_ALL
@pytest.mark.parametrize("again", [False, True])
def test_a_follower_whose_leader_is_halted_goes_on_in_what_is_left_of_its_cells(memory: Memory, again: bool) -> None:
    engine, shared = engine_of(2, memory=memory), SYSTEM + [9, 8, 7, 6, 5] * 40
    engine.turn(*(run_command(key, [*shared, *[key] * 10], 5, namespace="me") for key in (1, 2)))
    for _ in range(4):
        engine.turn()
    left = engine.table.sequences[0].cells
    engine.turn(Halt(1, False), run_command(3, [*shared, *[3] * 10] if again else [5] * 100, 5, namespace="me"))
    engine.finish()
    assert cached(engine, 2, [*shared, *[2] * 10]) == left > len(SYSTEM)


def joint(*, sequences: int = 3, saved_bytes: int = 100_000, memory: Memory = CELLS) -> FakeEngine:
    """Return an engine that has read a part of what three requests, 1 to 3, have in common."""
    engine = engine_of(sequences, saved_bytes=saved_bytes, memory=memory)
    engine.turn(*(run_command(key, [*COMMON, *[key] * 10], 5, namespace="me") for key in (1, 2, 3)))
    for _ in range(3):
        engine.turn()
    assert 0 < prefilled(engine) < len(COMMON)
    return engine


COMMON = SYSTEM + [9, 8, 7, 6, 5] * 20
EACH = len(COMMON) + 10


@ON_ALL
def test_followers_of_a_halted_leader_compute_the_rest_of_the_common_tokens_once(memory: Memory) -> None:
    engine = joint(memory=memory)
    engine.halt(1)
    engine.finish()
    assert all(cached(engine, key, [*COMMON, *[key] * 10]) for key in (2, 3))
    assert prefilled(engine) == len(COMMON) + 2 * 10


@ON_ALL
@pytest.mark.parametrize("saved_bytes", [0, 100_000])
def test_no_token_is_computed_again_when_a_leader_is_parked(memory: Memory, saved_bytes: int) -> None:
    engine = joint(memory=memory, saved_bytes=saved_bytes)
    engine.park(1)
    engine.finish()
    engine.resume(1)
    engine.finish()
    whole = memory.cuts_anywhere or saved_bytes
    assert [cached(engine, key, [*COMMON, *[key] * 10]) > 0 for key in (2, 3)] == [True, True]
    assert prefilled(engine) == len(COMMON) + 3 * 10 if whole else prefilled(engine) <= 3 * EACH


@ON_ALL
def test_a_parked_follower_goes_on_in_what_its_leader_computed_meanwhile(memory: Memory) -> None:
    engine = joint(memory=memory)
    engine.park(2)
    engine.finish()
    engine.resume(2)
    engine.finish()
    assert [cached(engine, key, [*COMMON, *[key] * 10]) for key in (1, 2, 3)] == [0, len(COMMON), len(COMMON)]


def test_a_parked_request_without_saved_cells_goes_on_in_those_of_others_and_is_paid_once() -> None:
    engine = engine_of(2, saved_bytes=0)
    engine.turn(*(run_command(key, question(key), 20, namespace="me") for key in (1, 2)))
    while len(engine.tokens(2)) < 3:
        engine.turn()
    computed = prefilled(engine)
    engine.park(1)
    engine.resume(1)
    engine.finish()
    assert (cached(engine, 1, question(1), 20), cached(engine, 2, question(2), 20)) == (0, len(SYSTEM))
    assert prefilled(engine) - computed <= len(question(1)) - len(SYSTEM) + 20


@ON_MARKS
def test_marks_keep_no_more_of_a_long_prompt_in_memory_than_their_own_tokens(memory: Memory) -> None:
    engine = FakeEngine(FakeContext(1, 50_000, memory=memory), saved_bytes=1_000_000)
    tracemalloc.start()
    for key in range(1, 21):
        sequence = engine.cache.start([key] * 40_000, "me")
        assert sequence is not None
        sequence.commit(20)
        engine.context.cells[0] = [key] * 20
        engine.cache.mark(sequence)
        engine.cache.discard(sequence)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert engine.context.states_saved == 20
    assert held < 5 * 40_000 * 4


@ON_MARKS
def test_of_a_leader_that_has_begun_to_answer_its_last_mark_is_used(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    prompt = question(1)
    engine.turn(run_command(1, prompt, 40, namespace="me"))
    while engine.table.sequences[0].cells < len(prompt) + 1:
        engine.turn()
    assert together(engine, *([*prompt, key, 9] for key in (1, 2, 3))) == [205, 206, 206]


@ON_MARKS
def test_a_running_sequence_goes_back_to_a_mark(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.turn(run_command(1, question(1), 5, namespace="me"))
    while not engine.tokens(1):
        engine.turn()
    (sequence,) = engine.running.seats.sequences.values()
    cells = sequence.cells
    engine.cache.mark(sequence)
    assert engine.cache.go_back(sequence, cells) == cells
    assert engine.cache.go_back(sequence, cells - 1) < cells
    assert engine.context.last_position(sequence.number) == sequence.cells - 1


def test_what_a_decode_failed_on_is_not_reused() -> None:
    # The first four decodes read the prompt.
    context = FakeContext(4, context_tokens=260, batch_tokens=64, codes={6: 2})
    engine = FakeEngine(context)
    engine.turn(run_command(1, question(1), 50, namespace="me"))
    engine.finish()
    assert engine.ends(1)[0].fault == "decode"
    assert engine.context.cells == [[]] * 4


def test_a_resumed_request_leaves_its_cells_to_others() -> None:
    engine = engine_of()
    engine.turn(run_command(1, question(1), 5, namespace="me"))
    engine.park(1)
    engine.resume(1)
    engine.finish()
    assert cached(engine, 1, question(1)) == 0
    assert ask(engine, 2, question(2)) == len(SYSTEM)


def test_hits_and_spared_tokens_are_counted() -> None:
    engine = engine_of()
    for key in range(3):
        ask(engine, key, question(key))
    assert engine.loop.counters["cache_hits"] == 2
    assert engine.loop.counters["cached_tokens"] == 2 * len(SYSTEM)


def test_the_prompts_here_are_answered_at_some_length() -> None:
    assert all(END_TOKEN not in solo(question(key), 5)[:2] for key in range(4))


def test_a_long_conversation_outlives_a_short_request_that_begins_like_it() -> None:
    engine = engine_of(sequences=2)
    conversation = SYSTEM[:30] + [1 + place * 11 % 26 for place in range(300)]
    ask(engine, 1, conversation)
    assert ask(engine, 2, [*SYSTEM[:30], 9, 9]) == 30
    assert ask(engine, 3, [*conversation, 8, 8]) >= len(conversation)


def test_a_conversation_whose_last_answer_was_changed_is_not_saved_each_time() -> None:
    engine = engine_of(sequences=2)
    conversation = [1 + place * 11 % 26 for place in range(400)]
    ask(engine, 1, conversation)
    assert ask(engine, 2, [*conversation[:250], 9, 9]) == 250
    assert engine.saved.bytes == 0


@pytest.mark.parametrize(("first", "second", "followed"), [(0, 150, 1), (150, 150, 0)])
def test_of_equal_prefixes_the_one_with_most_computed_cells_is_followed(first: int, second: int, followed: int) -> None:
    engine = engine_of()
    for number, cells in enumerate((first, second)):
        sequence, prefix = engine.table.sequences[number], prefix_of(question(1), cells_of("me", NO_ADAPTERS))
        sequence.start(question(1), number)
        engine.cache.resumed(sequence, prefix, [], None)
        sequence.commit(cells)
    follower = engine.cache.start(question(2), "me")
    assert follower is not None
    leader = engine.table.sequences[followed]
    leader.commit(len(SYSTEM) - leader.cells)
    engine.context.cells[followed] = list(SYSTEM)
    engine.cache.settle()
    assert follower.cells == len(SYSTEM)


@ON_MARKS
def test_a_parked_prompt_is_marked_where_it_would_have_been(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.turn(run_command(1, question(1, 100), 5, namespace="me", own=(6, 100)))
    engine.turn()
    engine.park(1)
    engine.resume(1)
    engine.finish()
    assert cached(engine, 1, question(1, 100)) == 0
    assert ask(engine, 2, question(1, 100)) == 294
    assert ask(engine, 3, question(3, 100)) == len(SYSTEM)


@ON_MARKS
def test_a_follower_whose_leader_is_halted_at_once_is_marked_where_others_go_on(memory: Memory) -> None:
    engine = engine_of(memory=memory)
    engine.turn(*(run_command(key, question(key, 50), 5, namespace="me", own=(6, 50)) for key in (1, 2)))
    engine.halt(1)
    engine.finish()
    assert ask(engine, 3, question(3, 50)) == len(SYSTEM)


@ON_MARKS
def test_a_branch_goes_on_at_its_mark_though_the_cells_that_it_leaves_take_the_mark_s_room(memory: Memory) -> None:
    engine = engine_of(1, memory=memory, saved_bytes=3400)
    ask(engine, 1, question(1, 60))
    ask(engine, 2, question(2, 60))  # parts behind the system prompt, and is marked there
    ask(engine, 3, question(3, 250))
    assert ask(engine, 4, question(4, 60)) == len(SYSTEM)


@ON_MARKS
def test_a_new_chat_goes_on_behind_the_system_prompt_after_a_long_chat_beside_little_memory(memory: Memory) -> None:
    engine = engine_of(2, memory=memory, saved_bytes=5000)
    prompt = question(1, 10)
    engine.turn(run_command(1, prompt, 5, namespace="me", own=(6, 10)))
    engine.finish()
    for key in range(2, 10):
        prompt = [*prompt, *engine.tokens(key - 1), *question(key, 20)[len(SYSTEM) :]]
        assert ask(engine, key, prompt) > len(SYSTEM)
    assert ask(engine, 10, question(10, 10)) == len(SYSTEM)


@ON_MARKS
def test_a_mark_that_a_waiting_prompt_goes_on_from_leaves_memory_after_the_marks_of_others(memory: Memory) -> None:
    def other(key: int) -> list[int]:
        return [1 + (key * key * 3 + place * (key + 3) + place * place * key) % 26 for place in range(300)]

    engine, prompt = engine_of(2, memory=memory, saved_bytes=8000), question(1)
    engine.turn(run_command(1, [*SYSTEM, *other(18)[:150]], 5, namespace="me", own=(150,)))
    engine.finish()
    engine.commands.expected.note(99, array("i", prompt).tobytes(), cells_of("me", NO_ADAPTERS))
    for key in range(2, 12):
        engine.turn(run_command(key, other(10 + key), 5, namespace="me", own=(5, 40)))
        engine.finish()
    assert engine.cache.at_hand(prompt, "me", NO_ADAPTERS) == len(SYSTEM)


@ON_MARKS
def test_a_start_costs_the_same_however_many_marks_there_are_behind_a_system_prompt(memory: Memory) -> None:
    def cost(chats: int) -> int:
        engine = engine_of(memory=memory, saved_bytes=10_000_000)
        for chat in range(chats):
            tokens = np.array([*SYSTEM, chat, *range(100)], np.int32)
            for end in range(len(SYSTEM) + 20, len(tokens), 20):
                prefix = Prefix(tokens, cells_of("me", NO_ADAPTERS)).cut(end)
                engine.saved.keep(Checkpoint(prefix, memoryview(b"state")))
        for key in range(16):
            engine.commands.expected.note(key, array("i", question(key)).tobytes(), cells_of("me", NO_ADAPTERS))
        return calls(lambda: engine.cache.start(question(99), "me"))

    assert cost(400) <= 1.5 * cost(20)
