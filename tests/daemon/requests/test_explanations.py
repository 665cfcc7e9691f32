"""The last prompts of each caller, and the reasons that a daemon knows by itself."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from msgspec import structs

from car_base.ipc.codec import packed_tokens
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin
from car_daemon.requests.explanations import Answered, Explanations
from car_protocol.answer import Parted, Usage
from car_protocol.conversation import Message

ORIGIN = CallOrigin(Identity(7), 1, 3, "a", "app", None)
SYSTEM, HELLO, MORE, OTHER = range(1000, 1070), range(2000, 2030), range(3000, 3050), range(4000, 4050)
MESSAGES = [Message("system", "Be kind."), Message("user", "Hello")]


def tokens(*texts: Sequence[int]) -> bytes:
    """Return texts as the tokens of a prompt."""
    return packed_tokens([token for text in texts for token in text])


ANSWERED = Answered(ORIGIN, "m", 1, "7:", tokens(SYSTEM, HELLO), MESSAGES)
USAGE = Usage(100, 20, 5)


class World:
    """A daemon whose engines are `up`."""

    def __init__(self) -> None:
        self.up = {1}
        self.now = 0.0
        self.known = Explanations(lambda engine: engine in self.up, lambda: self.now)

    def add(self, usage: Usage = USAGE, *, given: bool = False, **changes: Any) -> Parted | None:
        """Answer a request; return the reason of its usage."""
        return self.known.add(ANSWERED._replace(**changes), usage, given=given).parted


def parted(message: int | None, reason: Any = "message") -> Usage:
    """Return a usage with the reason that an engine gives."""
    return structs.replace(USAGE, parted=Parted(reason=reason, at=20, tokens=60, message=message))


def test_a_message_has_its_role() -> None:
    world = World()
    found = world.add(parted(0, "system"))
    assert found == Parted(reason="system", at=20, tokens=60, message=0, role="system")
    found = world.add(parted(1))
    assert found == Parted(reason="message", at=20, tokens=60, message=1, role="user")
    assert world.add(parted(99)) == parted(99).parted
    assert world.add(parted(None, "evicted")) == parted(None, "evicted").parted


def test_messages_are_numbered_as_the_caller_sent_them() -> None:
    world = World()
    found = world.add(parted(1), given=True)
    assert found == Parted(reason="message", at=20, tokens=60, message=0, role="user")
    found = world.add(parted(0, "system"), given=True)
    assert found == Parted(reason="system", at=20, tokens=60, role="system")


def usage(size: int, cached: int) -> Usage:
    """Return the usage of a prompt of so many tokens."""
    return Usage(size, cached, 5)


def test_the_cells_of_a_conversation_ended_with_the_engine_that_is_gone() -> None:
    world = World()
    assert world.add() is None
    world.up = {2}
    longer = tokens(SYSTEM, HELLO, MORE)
    assert world.add(usage(150, 20), engine=2, tokens=longer) == Parted(reason="restart", at=100, tokens=80)
    # The engine that is up has read it since.
    assert world.add(usage(150, 20), engine=2, tokens=longer) is None


def test_the_longest_conversation_that_a_gone_engine_read_counts() -> None:
    world = World()
    world.add(usage(150, 0), tokens=tokens(SYSTEM, HELLO, MORE))
    world.add()  # an earlier turn again
    world.up = {2}
    assert world.add(usage(100, 0), engine=2) == Parted(reason="restart", at=100, tokens=100)
    longer = tokens(SYSTEM, HELLO, MORE, OTHER)
    assert world.add(usage(200, 100), engine=2, tokens=longer) == Parted(reason="restart", at=150, tokens=50)


def test_what_a_new_conversation_begins_with_was_lost_with_the_engine_too() -> None:
    world = World()
    world.add()
    world.up = {2}
    lost = Parted(reason="restart", at=64, tokens=64)
    assert world.add(usage(120, 0), engine=2, tokens=tokens(SYSTEM, OTHER)) == lost
    assert world.add(usage(120, 0), engine=2, tokens=tokens(SYSTEM, MORE)) is None


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (Parted(reason="system", at=20, tokens=79), "restart"),
        (Parted(reason="system", at=20, tokens=90), "system"),
        (Parted(reason="message", at=20, tokens=90), "restart"),
    ],
)
def test_the_reason_for_more_tokens_counts_and_new_messages_least(own: Parted, reason: str) -> None:
    world = World()
    world.add()
    world.up = {2}
    found = world.add(structs.replace(USAGE, parted=own), engine=2)
    assert found is not None
    assert found.reason == reason


def test_an_engine_that_is_gone_is_no_reason_for_other_conversations() -> None:
    world = World()
    world.add()
    world.up = {2}
    for changes in ({"tokens": tokens(OTHER, HELLO)}, {"namespace": "7:salt"}, {"model": "other"}, {"tokens": b""}):
        assert world.add(engine=2, **changes) is None, changes
    assert world.add(usage(100, 99), engine=2) is None


@drawn(st.integers(1, 300), st.integers(0, 300), st.integers(0, 300))
def test_what_two_prompts_have_in_common_is_known_to_a_stride(size: int, alike: int, more: int) -> None:
    world = World()
    first = [*range(size)]
    second = [*range(min(alike, size)), *range(10_000, 10_000 + more + (alike < size))]
    world.add(usage(len(first), 0), tokens=tokens(first))
    world.up = {2}
    found = world.add(usage(len(second), 0), engine=2, tokens=tokens(second))
    common = min(alike, size)
    at = 0 if found is None else found.at
    assert common - 64 < at <= common or (at <= 1 and common <= 1)
    assert at == size if common == size > 1 else True


def test_each_caller_has_its_own_prompts_the_newest_first() -> None:
    world = World()
    world.add()
    world.now = 2.0
    world.add(origin=structs.replace(ORIGIN, id="b"))
    world.add(origin=structs.replace(ORIGIN, identity=Identity(7, "anna", 1 << 32)))
    assert [(each.id, each.age_s) for each in world.known.of(Identity(7), None)] == [("b", 0.0), ("a", 2.0)]
    assert [each.id for each in world.known.of(Identity(7), "a")] == ["a"]
    assert len(world.known.of(Identity(7, "anna", 1 << 32), None)) == 1
    assert world.known.of(Identity(8), None) == []


def test_what_is_remembered_has_bounds() -> None:
    world = World()
    for number in range(40):
        world.add(origin=structs.replace(ORIGIN, id=number))
    assert [each.id for each in world.known.of(Identity(7), None)] == [*range(39, 7, -1)]
    for uid in range(100, 164):
        world.add(origin=structs.replace(ORIGIN, identity=Identity(uid)))
    assert world.known.of(Identity(7), None) == []
    assert len(world.known.of(Identity(100), None)) == 1
