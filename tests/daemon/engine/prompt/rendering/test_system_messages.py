"""System messages without a role of their own: no text is lost, and all stay in order."""

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.engine.prompt.rendering.system_messages import folded
from car_protocol.conversation import Message, TextPart

TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.booleans()), min_size=1, max_size=8
)


@given(TURNS)
def test_every_text_stays_and_the_others_keep_their_order(turns: list[tuple[str, bool]]) -> None:
    said = [
        Message(role, [TextPart(f"<{place}>")] if parts else f"<{place}>") for place, (role, parts) in enumerate(turns)
    ]
    found = folded(said)
    assert "system" not in {message.role for message in found}
    texts = "".join(message.text for message in found)
    assert all(texts.count(message.text) == 1 for message in said)
    kept = [message for message in said if message.role != "system"]
    assert [message.role for message in found][: len(kept)] == [message.role for message in kept]
    assert all(mine.text in theirs.text for mine, theirs in zip(kept, found, strict=False))
