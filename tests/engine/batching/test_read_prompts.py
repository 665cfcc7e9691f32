"""Where a prompt parts from the nearest earlier one: by its parts, and by the cells that are left."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.types import PART_BYTES
from car_engine.batching.prefix import prefix_of
from car_engine.batching.reuse.read_prompts import KnownPrompt, Parting, ReadPrompts
from tests.engine.batching.test_prefix_cache import SYSTEM, ask, engine_of, prefilled, question
from tests.engine.fakes import run_command

TAIL = 3


def parts(*texts: str) -> bytes:
    """Return the digests of tools and messages that have these texts; zeros stand for an empty text.

    A message is the system's if its text has the word `system`, or says what time it is.
    """
    return b"".join(digest(text) if text else bytes(PART_BYTES) for text in texts)


def digest(text: str) -> bytes:
    first, *others = blake2b(text.encode(), digest_size=PART_BYTES).digest()
    return bytes([first & ~1 | ("system" in text or "it is" in text), *others])


class World:
    """Prompts of one caller, which are read in turn."""

    def __init__(self) -> None:
        self.prompts = ReadPrompts()

    def read(
        self, tokens: list[int], parts: bytes = b"", *, at_hand: int = 0, used: int = 0, namespace: str = "me"
    ) -> KnownPrompt:
        """Read a prompt; `at_hand` of its tokens have cells, and it goes on after `used` of them."""
        return self.prompts.add(prefix_of(tokens, namespace), parts, TAIL, at_hand=at_hand, used=used)


HEAD = list(range(100, 200))
REST, OTHER = list(range(300, 340)), list(range(400, 440))
FIRST = parts("tools", "system", "hello")


def test_a_prompt_without_an_earlier_one_and_a_prompt_that_goes_on_have_no_reason() -> None:
    world = World()
    assert world.read(HEAD, FIRST).parting is None
    assert world.read(HEAD + REST, FIRST + parts("answer", "more"), at_hand=100, used=100).parting is None


@pytest.mark.parametrize(
    ("changed", "reason", "message"),
    [
        (parts("other tools", "system", "hello"), "tools", None),
        (parts("tools", "other system", "hello"), "system", 0),
        (parts("tools", "system", "other"), "message", 1),
        (FIRST, "template", None),
        (b"", "prompt", None),
    ],
)
def test_the_first_part_that_differs_is_the_reason(changed: bytes, reason: str, message: int | None) -> None:
    world = World()
    world.read(HEAD + REST, FIRST)
    found = world.read(HEAD + OTHER, changed, at_hand=100, used=100).parting
    assert found == Parting(reason, 100, 40, message, REST[:16])  # type: ignore[arg-type]


def test_a_prompt_whose_first_words_differ_is_known_by_its_messages() -> None:
    world = World()
    world.read([1, 2, *HEAD], parts("", "it is 14:05", "hello"))
    assert world.read([1, 3, *OTHER], parts("", "it is 14:06", "what else")).parting is None
    found = world.read([1, 4, *HEAD], parts("", "it is 14:07", "hello")).parting
    assert found is not None
    assert (found.reason, found.message, found.at, found.tokens) == ("system", 0, 1, 101)


def test_a_prompt_that_begins_with_another_time_and_ends_with_another_question_parts_at_its_system_message() -> None:
    world = World()
    for minute, (clock, asked) in enumerate([([7, 8], REST), ([7, 9, 9, 9], OTHER), ([6], REST[:20])]):
        system = [1, 2, *clock, *HEAD, *HEAD[::-1]]
        found = world.read(system + asked, parts("", f"it is {minute}", f"question {minute}")).parting
        if minute:
            assert found is not None
            assert (found.reason, found.message, found.at) == ("system", 0, 3 if minute == 1 else 2)


@given(st.lists(st.integers(0, 50_000), min_size=17, max_size=300), st.integers(0, 2**32))
def test_prompts_without_a_run_in_common_have_no_reason(tokens: list[int], seed: int) -> None:
    world = World()
    world.read([100_000 + token for token in tokens], parts("", "system", "hello"))
    others = [200_000 + (token * 31 + seed) % 50_000 for token in tokens]
    assert world.read(others, parts("", "other system", "another hello")).parting is None


def test_an_answer_that_comes_back_otherwise_is_the_message_that_differs() -> None:
    world = World()
    earlier = world.read(HEAD, FIRST)
    earlier.prefix = prefix_of(HEAD + REST, "me")  # with the answer
    found = world.read(HEAD + OTHER, FIRST + parts("answer", "more"), at_hand=100, used=100).parting
    assert found == Parting("message", 100, 40, 2, REST[:16])


def test_cells_that_left_are_a_reason_and_those_without_a_mark() -> None:
    world = World()
    world.read(HEAD + REST, FIRST)
    again = FIRST + parts("answer")
    assert world.read(HEAD + REST + [1] * 9, again).parting == Parting("evicted", 140, 140)
    assert world.read(HEAD + REST + [2] * 9, again, at_hand=140, used=60).parting == Parting("no_mark", 140, 80)
    # With the evicted cells the prompt would have gone on after 140 tokens, so the 80 without a mark count as evicted.
    assert world.read(HEAD + REST + [3] * 9, again, at_hand=100, used=20).parting == Parting("evicted", 140, 120)


def test_cells_that_the_model_could_not_keep_are_missing_for_lack_of_a_mark() -> None:
    world = World()
    world.read(HEAD + REST, FIRST).left = 60
    again = world.read(HEAD + REST, FIRST)
    assert again.parting == Parting("no_mark", 140, 79)
    again.left = 60
    assert world.read(HEAD + REST, FIRST, at_hand=60, used=60).parting == Parting("no_mark", 140, 79)


def test_tokens_with_cells_behind_the_nearest_known_prompt_are_not_read_again() -> None:
    other = parts("tools", "system", "other")
    for used, parting in ((139, None), (110, Parting("message", 100, 30, 1, REST[:16]))):
        world = World()
        world.read(HEAD + REST, FIRST)
        assert world.read(HEAD + OTHER, other, at_hand=used, used=used).parting == parting


def test_a_prompt_that_lacks_the_earlier_system_message_parts_there() -> None:
    world = World()
    world.read([1, 2, *HEAD], parts("", "system", "hello"))
    found = world.read(REST, parts("", "hello", "answer", "more")).parting
    assert found is not None
    assert (found.reason, found.message, found.at) == ("system", 0, 0)


@pytest.mark.parametrize("at_hand", [100, 70])
def test_a_changed_system_message_is_the_reason_if_it_costs_more_than_lost_cells(at_hand: int) -> None:
    world = World()
    world.read(HEAD + REST * 3, FIRST)
    changed = parts("tools", "other system", "hello")
    found = world.read(HEAD + OTHER * 3, changed, at_hand=at_hand, used=70).parting
    assert found is not None
    assert (found.reason, found.at, found.tokens) == ("system", 100, 120)


def test_of_prompts_that_part_at_one_place_the_prompt_with_the_same_tools_is_the_nearest() -> None:
    world = World()
    world.read(HEAD + REST, FIRST)
    world.read(HEAD + [1, 2] * 20, parts("", "system", "hello"))
    found = world.read(HEAD + OTHER, parts("tools", "other system", "hello"), at_hand=100, used=100).parting
    assert found == Parting("system", 100, 40, 0, REST[:16])


def test_a_new_message_is_the_reason_only_if_there_is_no_other() -> None:
    world = World()
    world.read(HEAD + REST, FIRST)
    found = world.read(HEAD + OTHER, parts("tools", "system", "other"), at_hand=100, used=70).parting
    assert found is not None
    assert (found.reason, found.tokens) == ("no_mark", 30)


def test_prompts_of_others_and_of_other_pieces_are_not_near() -> None:
    world = World()
    world.read(HEAD, FIRST)
    assert world.read(HEAD, FIRST, namespace="you").parting is None
    prefix = prefix_of(HEAD, "me", 64)
    assert world.prompts.add(prefix, FIRST, TAIL, at_hand=0, used=0).parting is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_the_nearest_prompt_is_the_newest_with_most_tokens_in_common(common: list[int]) -> None:
    world = World()
    for number, count in enumerate(common):
        world.read(HEAD + OTHER[:count] + [1000 + number] * 60, FIRST)
    found = world.read(HEAD + OTHER + REST, FIRST, at_hand=110, used=110).parting
    most = max(count for count in common)
    newest = max(number for number, count in enumerate(common) if count == most)
    assert found is not None
    assert (found.at, found.known) == (100 + most, [1000 + newest] * 16)


def test_the_oldest_prompt_is_forgotten() -> None:
    world = World()
    world.read(HEAD, FIRST)
    for number in range(64):
        world.read([1000 + number] * 20)
    assert world.read(HEAD, FIRST).parting is None


def test_a_prompt_that_was_cancelled_counts_as_far_as_it_was_read() -> None:
    engine = engine_of(1, saved_bytes=0)
    engine.turn(run_command(1, question(1), namespace="me"))
    read = prefilled(engine)
    engine.halt(1)
    ask(engine, 2, [27] * 40)
    ask(engine, 3, question(1))
    (end,) = engine.ends(3)
    assert end.usage.parted is not None
    assert (end.usage.parted.reason, end.usage.parted.at) == ("evicted", read)
    assert read < len(question(1))


def test_of_a_prompt_that_was_cancelled_before_its_first_token_nothing_was_read() -> None:
    engine = engine_of()
    engine.turn(*(run_command(key, question(key, words=40), namespace="me") for key in (1, 2)))
    engine.halt(2)
    engine.finish()
    ask(engine, 3, question(2, words=40))
    parted = engine.ends(3)[0].usage.parted
    assert parted is not None
    assert (parted.reason, parted.at) == ("prompt", len(SYSTEM))


def test_an_answer_says_why_its_prompt_was_computed_again() -> None:
    engine = engine_of(1, saved_bytes=0)
    ask(engine, 1, question(1, words=40))
    ask(engine, 2, question(2, words=40))
    ask(engine, 3, [27] * 40)
    ask(engine, 4, question(1, words=40))
    first, other, _, again = [engine.ends(key)[0].usage.parted for key in range(1, 5)]
    assert first is None
    assert other is not None
    assert (other.reason, other.at, other.tokens) == ("prompt", len(SYSTEM), 40)
    assert again is not None
    assert (again.reason, again.at, again.was) == ("evicted", len(SYSTEM) + 39 + 1, None)
