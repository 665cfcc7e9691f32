"""The bound on thoughts: a thought that has all its tokens is closed, and the answer goes on from there."""

from collections.abc import Callable

import pytest

from car_base.ipc.frames import Reading
from car_base.ipc.template_syntax import THINKING_TAGS
from car_base.ipc.types import Tags, ToolStyle
from car_engine.output.families import FAMILIES
from car_engine.output.reader import OutputReader
from car_engine.runner.generation import ThoughtBudget, closing_text, reader_of
from tests.engine.fakes import PIECES, FakeContext, FakeEngine, FakeSampler, run_command, solo

FREE = next([token] for token in range(1, 27) if 0 not in solo([token], 40))
CLOSE = next(
    pair
    for one in PIECES[1:]
    for other in PIECES[1:]
    if (pair := (one + other).decode()) not in "".join(PIECES[token].decode() for token in solo(FREE, 40))
)
READING = Reading(Tags("#", CLOSE), inside=True)


def letters(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


def reasoning(engine: FakeEngine) -> str:
    return "".join(update.extra.reasoning for update in engine.updates[1] if update.extra is not None)


@pytest.mark.parametrize("most", [0, 1, 5, 39])
def test_a_thought_has_its_tokens_and_its_end_and_the_answer_follows_from_them(most: int) -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, FREE, 50, reading=READING, reasoning_tokens=most))
    engine.finish()
    tokens = engine.tokens(1)
    begun = most + len(CLOSE)
    assert letters(tokens[:begun]) == letters(solo(FREE, most)) + CLOSE
    assert tokens[begun:] == solo([*FREE, *tokens[:begun]], 50 - begun)
    assert (reasoning(engine), engine.text(1)) == (letters(tokens[:most]), letters(tokens[begun:]))


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_grammar_binds_the_answer_behind_the_end_that_the_bound_wrote(most: int) -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, FREE, 50, constraint="xyz", reading=READING, reasoning_tokens=most))
    engine.finish()
    assert (reasoning(engine), engine.text(1)) == (letters(solo(FREE, most)), "xyz")
    assert engine.ends(1)[0].reason == "stop"


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    free = letters(solo(FREE, 40))
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, FREE, 40, reading=Reading(Tags("#", free[4:6]), inside=True), reasoning_tokens=6))
    engine.finish()
    assert letters(engine.tokens(1)) == free


def test_a_parked_thought_keeps_its_count() -> None:
    whole, parked = FakeEngine(FakeContext()), FakeEngine(FakeContext())
    for engine in (whole, parked):
        engine.turn(run_command(1, FREE, 20, reading=READING, reasoning_tokens=6))
    parked.park(1)
    parked.resume(1)
    for engine in (whole, parked):
        engine.finish()
    assert parked.tokens(1) == whole.tokens(1)


def budget_of(most: int, reader: OutputReader) -> tuple[FakeSampler, Callable[[str], None]]:
    """Return a sampler under a budget, and what reads a token's text."""
    sampler = FakeSampler()
    budget = ThoughtBudget(most, [1, 2], sampler, reader)

    def read(text: str) -> None:
        reader.push(text.encode())
        budget.look()

    return sampler, read


def state(sampler: FakeSampler) -> tuple[int | None, list[int]]:
    """Return the most tokens of the next step, and the tokens that come next."""
    return sampler.ahead, sampler.due


def test_a_step_has_no_more_guessed_tokens_than_may_be_thought() -> None:
    sampler, read = budget_of(4, reader_of(Reading(Tags("<a>", "</a>")), [], lambda: ""))
    assert state(sampler) == (4, [])
    read("<a>")
    assert state(sampler) == (4, [])
    for left in (3, 2, 1):
        read("word")
        assert state(sampler) == (left, [])
    read("word")
    assert state(sampler) == (1, [1, 2])
    sampler.due.clear()
    read("</a>")
    read("text")
    assert state(sampler) == (None, [])


@pytest.mark.parametrize("tags", THINKING_TAGS, ids=lambda tags: tags.open)
@pytest.mark.parametrize("bound", [False, True])
def test_the_end_of_a_thought_in_tags_is_read_as_its_end(tags: Tags, *, bound: bool) -> None:
    reading = Reading(tags, inside=True)
    reader = reader_of(reading, [], lambda: "")
    closing = closing_text(reading, bound=bound)
    assert closing is not None
    thought = reader.push(b"So be").reasoning
    assert reader.thinking
    thought += reader.push(closing.encode()).reasoning
    assert (thought, reader.thinking, reader.push(b"Yes").text) == ("So be", False, "Yes")


THOUGHTS: dict[ToolStyle, str] = {
    "gpt_oss": "<|channel|>analysis<|message|>",
    "muse": "<|start|>assistant to=self<|message|>",
}


def test_every_family_of_thoughts_in_messages_is_tried() -> None:
    assert THOUGHTS.keys() == {style for style, family in FAMILIES.items() if family.header and family.header.thought}


@pytest.mark.parametrize("style", THOUGHTS)
def test_the_end_of_a_thought_in_a_message_is_read_as_its_end(style: ToolStyle) -> None:
    reading = Reading(tools=style)
    reader = reader_of(reading, [], lambda: "")
    closing = closing_text(reading, bound=False)
    assert closing is not None
    reader.push(f"{THOUGHTS[style]}So be".encode())
    assert reader.thinking
    reader.push(closing.encode())
    assert not reader.thinking


def test_an_answer_without_thoughts_has_no_end_of_one() -> None:
    assert closing_text(Reading(), bound=False) is None
    assert closing_text(Reading(tools="hermes"), bound=False) is None
