"""Members that a request leaves out: the entry's values, under explicit members."""

import pytest
from msgspec import UNSET

from car_daemon.requests.inference import with_defaults
from car_protocol.conversation import Message
from car_protocol.infer import InferParams
from car_protocol.models import Defaults
from car_protocol.params import decode_params
from car_protocol.text import TokenizeParams

ALL = Defaults(max_tokens=5, temperature=0.1, top_p=0.2, reasoning="off", system="Be brief.")


def test_absent_members_have_the_entrys_values() -> None:
    params = with_defaults(InferParams(prompt="a"), ALL)
    assert (params.max_tokens, params.temperature, params.top_p, params.reasoning) == (5, 0.1, 0.2, "off")
    assert params.messages is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"prompt":"a","max_tokens":9,"temperature":0.8,"top_p":0.95,"reasoning":"auto"}',
        b'{"prompt":"a","max_tokens":9,"temperature":0,"top_p":0,"reasoning":"keep"}',
    ],
)
def test_explicit_members_win_also_with_the_usual_values(text: bytes) -> None:
    params = decode_params(InferParams, text)
    assert isinstance(params, InferParams)
    assert with_defaults(params, ALL) == params


def test_an_entry_without_values_changes_nothing() -> None:
    params = InferParams(prompt="a")
    assert with_defaults(params, Defaults()) is params
    assert params.temperature is UNSET


def test_a_conversation_without_a_system_message_begins_with_the_entrys() -> None:
    user, given = Message("user", "Hi"), Message("system", "Be kind.")
    for kind in (InferParams, TokenizeParams):
        params = with_defaults(kind(messages=[user]), ALL)
        assert (params.messages, params.reasoning) == ([Message("system", "Be brief."), user], "off")
        for role in ("system", "developer"):
            own = kind(messages=[Message(role, "Be kind."), user])
            assert with_defaults(own, ALL).messages == own.messages
    assert given.text == "Be kind."
