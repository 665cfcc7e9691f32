"""Calls one by one: each is followed by its result, and no message is lost."""

from hypothesis import given
from hypothesis import strategies as st

from car_engine.prompt.rendering.writer import one_by_one
from car_protocol.conversation import Message, ToolCall
from tests.engine.prompt.chats import call, calls, result, user


def shown(messages: list[Message]) -> list[str]:
    """Return each message as its texts and the ids of its calls."""
    return [" ".join([message.text, *(each.id for each in message.tool_calls or ())]).strip() for message in messages]


def test_each_call_is_followed_by_its_result() -> None:
    two = Message(
        "assistant", "I look.", reasoning="hm", tool_calls=[call("f", "{}", key="a"), call("g", "{}", key="b")]
    )
    found = one_by_one([*user("Hi"), two, result("2", key="b"), result("1", key="a"), *user("Thanks")])
    assert shown(found) == ["Hi", "I look. a", "1", "b", "2", "Thanks"]
    assert [message.reasoning for message in found[1:4:2]] == ["hm", None]


def test_results_without_an_id_are_in_the_order_of_the_calls() -> None:
    two = calls(call("f", "{}", key="a"), call("g", "{}", key="b"))
    results = [Message("tool", "1"), Message("tool", "2"), result("3", key="odd")]
    assert shown(one_by_one([two, *results])) == ["a", "1", "b", "2", "3"]


def test_other_messages_stay_as_they_are() -> None:
    said = [*user("Hi"), calls(call("f", "{}")), result("1"), Message("assistant", "Yes")]
    assert one_by_one(said) == said


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5)


@given(TURNS)
def test_no_call_and_no_result_is_lost(turns: list[tuple[int, int]]) -> None:
    said: list[Message] = []
    for place, (made, answered) in enumerate(turns):
        keys = [f"{place}-{number}" for number in range(4)]
        said.append(calls(*(call("f", "{}", key=key) for key in keys[:made])) if made else Message("user", str(place)))
        said += [result(f"r{key}", key=key) for key in reversed(keys[:answered])]
    found = one_by_one(said)
    assert sorted(message.text for message in found if not message.tool_calls) == sorted(
        message.text for message in said if not message.tool_calls
    )
    assert made_in(found) == made_in(said)
    assert all(len(message.tool_calls or ()) < 2 for message in found)


def made_in(messages: list[Message]) -> list[ToolCall]:
    return [each for message in messages for each in message.tool_calls or ()]
