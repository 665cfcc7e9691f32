"""Messages of roles that the chat template does not know: refused if their text would vanish."""

import pytest

from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_protocol.conversation import Message
from tests.engine.prompt.chats import chat, opened, user
from tests.engine.prompt.fakes import FakeVocabulary

LIMIT = ContextLimit(1000, 4)
PICKY = (
    "{% for message in messages %}{% if message.role in ('user', 'control') %}{{ message.content }}{% endif %}"
    "{% endfor %}assistant: "
)


@pytest.mark.parametrize("role", ["User", "wizard"])
@pytest.mark.parametrize("before", [(), user("hi")])
def test_a_message_whose_text_the_template_drops_is_refused_by_its_role(role: str, before: list[Message]) -> None:
    conversations = Conversations(opened(PICKY, FakeVocabulary([])), LIMIT)
    with pytest.raises(Refusal) as error:
        conversations.prompt(chat(*before, Message(role, "secret")), None)
    assert error.value.data["param"] == f"messages[{len(before)}].role"
    assert repr(role) in str(error.value.data["why"])


@pytest.mark.parametrize("said", ["thinking", "", " "])
def test_a_role_of_the_templates_own_is_taken(said: str) -> None:
    conversations = Conversations(opened(PICKY, FakeVocabulary([])), LIMIT)
    assert conversations.prompt(chat(*user("hi"), Message("control", said)), None).tokens
