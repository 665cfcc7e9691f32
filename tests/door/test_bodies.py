"""Bodies: how many values one may have, and how the memory for all of them is shared by the keys."""

import msgspec
import pytest

from car_http.dialects.common import called_arguments, decode
from car_http.dialects.openai_chat import ChatRequest
from car_http.problems import Problem
from car_protocol.limits import MAX_MEMBERS
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import OfflineDoor
from tests.e2e.support import conversation

CHAT = "/v1/chat/completions"
MANY = b"[" + b",".join([b"[]"] * MAX_MEMBERS) + b"]"
# The first member is of a wrong type: a decoder would name it.
BODIES = {
    "template arguments": b'{"messages":1,"chat_template_kwargs":{"a":%s}}',
    "a tool's parameters": b'{"messages":1,"tools":[{"function":{"name":"f","parameters":{"a":%s}}}]}',
    "a member that is dropped": b'{"messages":1,"anything":%s}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_of_too_many_values_is_refused_before_they_are_decoded(
    offline: OfflineDoor, fake: FakeDaemon, body: bytes
) -> None:
    answer = await offline.post(CHAT, body % MANY)
    assert (answer.status, answer.json["error"]["code"]) == (400, "limit")
    assert answer.json["error"]["message"] == (
        "the body has more than 200,000 objects, members and arrays: send smaller schemas and fewer tools"
    )
    assert fake.calls == []


def test_brackets_in_the_texts_of_a_body_count_for_nothing() -> None:
    text = "[{:" * MAX_MEMBERS
    body = msgspec.json.encode({"messages": conversation(text)})
    assert decode(body, ChatRequest).messages[0].content == text


def test_a_body_that_is_not_json_is_refused_as_such_however_many_brackets_it_has() -> None:
    with pytest.raises(Problem) as caught:
        decode(b"[" * (2 * MAX_MEMBERS), ChatRequest)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_the_arguments_of_a_call_are_checked_without_an_object_for_each_of_their_values() -> None:
    """They are a text of the body, whose bound does not count them; a number of any size is passed on."""
    for text in ('{"a":1e999}', f'{{"a":{MANY.decode()}}}'):
        assert called_arguments(text) == text
    for text in ("[]", "1", '{"a":', '{"a":1} x'):
        assert msgspec.json.decode(called_arguments(text)) == {"arguments": text}
    assert called_arguments(" ") == called_arguments(None) == "{}"
