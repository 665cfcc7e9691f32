"""System messages without a role or place of their own: no text is lost, and all stay in order."""

from hypothesis import given
from hypothesis import strategies as st

from car_engine.prompt.rendering.writer import folded, folded_late
from car_protocol.conversation import Message, TextPart

TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.booleans()), min_size=1, max_size=8
)


def messages_of(turns: list[tuple[str, bool]]) -> list[Message]:
    """Return messages with a text of their own each, some in parts."""
    return [
        Message(role, [TextPart(f"<{place}>")] if parts else f"<{place}>") for place, (role, parts) in enumerate(turns)
    ]


@given(TURNS)
def test_every_text_stays_and_the_others_keep_their_order(turns: list[tuple[str, bool]]) -> None:
    said = messages_of(turns)
    found = folded(said)
    assert "system" not in {message.role for message in found}
    texts = "".join(message.text for message in found)
    assert all(texts.count(message.text) == 1 for message in said)
    kept = [message for message in said if message.role != "system"]
    assert [message.role for message in found][: len(kept)] == [message.role for message in kept]
    assert all(mine.text in theirs.text for mine, theirs in zip(kept, found, strict=False))


@given(TURNS)
def test_late_system_messages_become_text_of_the_users_turns_in_their_place(turns: list[tuple[str, bool]]) -> None:
    said = messages_of(turns)
    found = folded_late(said)
    assert [message.role for message in found[1:]].count("system") == 0
    texts = "".join(message.text for message in found).replace("\n\n", "")
    assert sorted(texts.split("<")) == sorted("".join(message.text for message in said).split("<"))
    if "tool" not in [role for role, _ in turns]:
        assert texts == "".join(message.text for message in said)
    others = [message.role for message in said if message.role not in ("system", "user")]
    assert [message.role for message in found if message.role not in ("system", "user")] == others


def test_a_late_system_message_between_two_results_of_tools_follows_both() -> None:
    said = messages_of([(role, False) for role in ("user", "assistant", "tool", "system", "tool", "assistant")])
    found = folded_late(said)
    assert [message.role for message in found] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert found[4].text == "<3>"


@given(TURNS)
def test_a_conversation_that_goes_on_keeps_its_beginning(turns: list[tuple[str, bool]]) -> None:
    said = messages_of(turns)
    answered = [*said, Message("assistant", "Hello")]
    assert folded_late(answered) == [*folded_late(said), answered[-1]]
