"""The arguments of earlier calls, texts that hold JSON: they are bounded as a frame's own values are."""

import pytest

from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_protocol.limits import MAX_MEMBERS, MAX_VALUES
from tests.engine.prompt.chats import call, calls, chat, opened, user
from tests.engine.prompt.fakes import FakeVocabulary

SHOWN = "{% for message in messages %}{{ message.tool_calls and message.tool_calls[0].function.arguments }}{% endfor %}"
LIMIT = ContextLimit(1000, 4)


def why(*arguments: str) -> str:
    """Return why a chat with calls of these arguments is refused."""
    conversations = Conversations(opened(SHOWN, FakeVocabulary([])), LIMIT)
    asked = chat(*user("hi"), *(calls(call("f", each)) for each in arguments))
    with pytest.raises(Refusal) as error:
        conversations.prompt(asked, None)
    assert error.value.data["param"] == "messages"
    return str(error.value.data["why"])


def listed(value: str, count: int) -> str:
    """Return arguments with this value so many times."""
    return f'{{"a": [{",".join([value] * count)}]}}'


@pytest.mark.parametrize("value", ["[]", "{}", '{"a": 1}'])
def test_too_many_containers_are_refused_before_a_child_decodes_them(value: str) -> None:
    conversations = Conversations(opened(SHOWN, FakeVocabulary([])), LIMIT)
    assert f"more than {MAX_MEMBERS:,}" in why(listed(value, MAX_MEMBERS + 1))
    assert f"more than {MAX_MEMBERS:,}" in why(*[listed(value, MAX_MEMBERS // 2)] * 3)
    assert conversations.prompt(chat(*user("hi"), calls(call("f", listed(value, 3)))), None).tokens


def test_arguments_of_millions_of_characters_that_are_no_json_are_refused_as_such() -> None:
    assert why("[{:" * MAX_MEMBERS) == "the arguments of a call are not JSON"


def test_long_texts_in_arguments_count_as_one_value() -> None:
    text = '{"text": "' + r"[{\":" * MAX_MEMBERS + '"}'
    conversations = Conversations(opened("{{ messages | length }}", FakeVocabulary([])), LIMIT)
    assert conversations.prompt(chat(*user("hi"), calls(call("f", text))), None).tokens


def test_the_values_of_all_calls_count_together() -> None:
    assert f"at most {MAX_VALUES:,}" in why(*[listed("1", MAX_VALUES // 2)] * 3)
