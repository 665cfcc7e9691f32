"""Requests under grammars in the loop: they end where their grammar does, and wait without delaying others."""

import pytest

from car_base.ipc.frames import Reading
from car_base.ipc.types import Tags
from car_engine.batching.sequences import Phase
from tests.engine.fakes import PIECES, FakeContext, FakeEngine, run_command, solo

PROMPT = [3, 4]
# A prompt with a long answer.
FREE = next([token] for token in range(1, 27) if 0 not in solo([token], 40))


def test_a_request_whose_grammar_is_complete_ends_with_stop() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPT, 50, constraint="abc"))
    engine.finish()
    assert (engine.text(1), engine.tokens(1)) == ("abc", [1, 2, 3])
    (end,) = engine.ends(1)
    assert (end.reason, end.fault, end.usage.completion_tokens) == ("stop", None, 3)
    assert not engine.samplers.alive


def test_a_grammar_that_is_longer_than_max_tokens_ends_with_length() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPT, 2, constraint="abc"))
    engine.finish()
    assert (engine.text(1), engine.ends(1)[0].reason) == ("ab", "length")


def test_a_request_whose_grammar_fails_ends_with_that_fault_and_keeps_its_text() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPT, 50, constraint="ab!"), run_command(2, FREE, 8))
    engine.finish()
    (end,) = engine.ends(1)
    assert (engine.text(1), end.reason, end.fault) == ("ab", None, "constraint")
    assert engine.tokens(2) == solo(FREE, 8), "others do not notice"
    assert engine.context.cells == [[]] * 4
    assert not engine.samplers.alive


def test_many_slow_grammars_and_free_requests_all_have_their_own_answers() -> None:
    # Every reading of the clock exceeds the budget: one grammar has its turn in each step.
    engine = FakeEngine(FakeContext(sequences=6), tick=0.01)
    words = ["abc", "xyz", "hello", "q"]
    engine.turn(
        *(run_command(key, PROMPT, 50, constraint=word) for key, word in enumerate(words)),
        *(run_command(10 + key, [*FREE, key], 8) for key in (1, 2)),
    )
    engine.finish()
    assert [engine.text(key) for key in range(4)] == words
    assert [engine.tokens(10 + key) for key in (1, 2)] == [solo([*FREE, key], 8) for key in (1, 2)]


def test_free_requests_have_a_token_in_every_step_once_prompts_are_read_while_grammars_take_turns() -> None:
    engine = FakeEngine(FakeContext(sequences=4), tick=0.01)
    engine.turn(run_command(9, FREE, 8), *(run_command(key, PROMPT, 50, constraint="abcdefgh") for key in (1, 2, 3)))
    had = []
    while not engine.ends(9):
        had.append(len(engine.tokens(9)))
        engine.turn()
    assert had[had.index(3) :] == [3, 4, 5, 6, 7]


def waiting(stop: list[str] | None = None) -> FakeEngine:
    """Return an engine whose request 2 has one letter, and waits for the turn of its second."""
    engine = FakeEngine(FakeContext(), tick=0.01)
    engine.turn(*(run_command(key, [*PROMPT, key], 50, constraint="abc", stop=stop) for key in (1, 2, 3)))
    for _ in range(100):
        number = engine.number_of(2)
        assert number is not None
        if engine.text(2) and engine.table.sequences[number].phase is Phase.SAMPLE:
            return engine
        engine.turn()
    raise AssertionError


def test_a_request_that_is_halted_while_its_logits_wait_ends_and_samples_no_more() -> None:
    engine = waiting()
    said = engine.text(2)
    engine.halt(2)
    assert [(end.reason, end.fault) for end in engine.ends(2)] == [(None, None)]
    engine.finish()
    assert (engine.text(1), engine.text(2), engine.text(3)) == ("abc", said, "abc")
    assert not engine.samplers.alive


def test_a_deadline_while_logits_wait_gives_what_there_is() -> None:
    engine = waiting(stop=["b?"])
    engine.halt(2, deadline=True)
    assert (engine.text(2), engine.ends(2)[0].reason) == ("a", "deadline")


@pytest.mark.parametrize("saved_bytes", [0, 1000])
def test_a_request_that_is_parked_while_its_logits_wait_goes_on_as_if_it_had_not_been(saved_bytes: int) -> None:
    engine = waiting()
    engine.saved._limit = saved_bytes
    engine.park(2)
    for _ in range(5):
        engine.turn()
    assert len(engine.text(2)) == 1, "a parked request samples nothing"
    engine.turn(run_command(4, PROMPT, 50, constraint="z"))
    engine.resume(2)
    engine.finish()
    assert [engine.text(key) for key in (1, 2, 3, 4)] == ["abc", "abc", "abc", "z"]
    assert engine.ends(2)[0].reason == "stop"


def test_a_request_that_is_parked_before_its_first_token_goes_on_from_its_prompt() -> None:
    engine = FakeEngine(FakeContext(), tick=0.01)
    engine.turn(*(run_command(key, [*PROMPT, key], 50, constraint="abc") for key in (1, 2)))
    while not any(sequence.awaiting_turn for sequence in engine.table.sequences):
        engine.turn()
    key = next(key for key in (1, 2) if engine.table.sequences[engine.number_of(key) or 0].awaiting_turn)
    engine.park(key)
    engine.resume(key)
    engine.finish()
    assert [engine.text(key) for key in (1, 2)] == ["abc", "abc"]


def letters(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


def test_inside_a_thought_the_grammar_is_dormant_and_after_it_binds() -> None:
    answer = letters(solo(FREE, 40))
    close = answer[4:6]
    thought = answer[: answer.index(close)]
    engine = FakeEngine(FakeContext())
    reading = Reading(Tags("#", close), inside=True)
    engine.turn(run_command(1, FREE, 50, constraint="xyz", reading=reading))
    engine.finish()
    reasoning = "".join(update.extra.reasoning for update in engine.updates[1] if update.extra is not None)
    assert (reasoning, engine.text(1)) == (thought, "xyz")
    assert engine.ends(1)[0].reason == "stop"


def test_a_thought_that_the_answer_opens_itself_makes_the_grammar_dormant() -> None:
    engine = FakeEngine(FakeContext())
    # The fake grammar begins with the tag's letter, as the real one allows its token.
    opened = [*FREE, 1]
    free = letters(solo(opened, 40))
    close = free[3:5]
    reading = Reading(Tags("a", close))
    engine.turn(run_command(1, FREE, 50, constraint="axyz", reading=reading))
    engine.finish()
    reasoning = "".join(update.extra.reasoning for update in engine.updates[1] if update.extra is not None)
    assert (reasoning, engine.text(1)) == (free[: free.index(close)], "xyz")
