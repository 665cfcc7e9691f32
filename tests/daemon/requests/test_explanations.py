"""The last prompts of each caller, and the reasons that a daemon knows by itself."""

from typing import Any

from msgspec import structs

from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin
from car_daemon.requests.explanations import Answered, Explanations
from car_protocol.answer import Parted, Usage
from car_protocol.conversation import Message

ORIGIN = CallOrigin(Identity(7), 1, 3, "a", "app", None)
SYSTEM, HELLO, ANSWER, MORE = b"systems.", b"hello...", b"answer..", b"more...."
TOOLS = bytes(8)
MESSAGES = [Message("system", "Be kind."), Message("user", "Hello")]
ANSWERED = Answered(ORIGIN, "m", 1, "7:", TOOLS + SYSTEM + HELLO, MESSAGES)
USAGE = Usage(100, 20, 5)


class World:
    """A daemon whose engines are `up`."""

    def __init__(self) -> None:
        self.up = {1}
        self.now = 0.0
        self.known = Explanations(lambda engine: engine in self.up, lambda: self.now)

    def add(self, usage: Usage = USAGE, **changes: Any) -> Parted | None:
        """Answer a request; return the reason of its usage."""
        return self.known.add(ANSWERED._replace(**changes), usage).parted


def parted(message: int | None, reason: Any = "message") -> Usage:
    """Return a usage with the reason that an engine gives."""
    return structs.replace(USAGE, parted=Parted(reason=reason, at=20, tokens=60, message=message))


def test_a_message_has_its_role_and_a_system_message_is_a_reason_of_its_own() -> None:
    world = World()
    found = world.add(parted(0))
    assert found == Parted(reason="system", at=20, tokens=60, message=0, role="system")
    found = world.add(parted(1))
    assert found == Parted(reason="message", at=20, tokens=60, message=1, role="user")
    assert world.add(parted(99)) == parted(99).parted
    assert world.add(parted(None, "evicted")) == parted(None, "evicted").parted


def test_the_cells_of_a_conversation_ended_with_the_engine_that_is_gone() -> None:
    world = World()
    assert world.add() is None
    world.up = {2}
    longer = TOOLS + SYSTEM + HELLO + ANSWER + MORE
    assert world.add(Usage(150, 20, 5), engine=2, parts=longer) == Parted(reason="restart", at=100, tokens=80)
    # The engine that is up has read it since.
    assert world.add(Usage(150, 20, 5), engine=2, parts=longer) is None


def test_an_engine_that_is_gone_is_no_reason_for_other_conversations() -> None:
    world = World()
    world.add()
    world.up = {2}
    for changes in ({"parts": TOOLS + SYSTEM + MORE}, {"namespace": "7:salt"}, {"model": "other"}, {"parts": b""}):
        assert world.add(engine=2, **changes) is None, changes
    assert world.add(Usage(100, 99, 5), engine=2) is None


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
