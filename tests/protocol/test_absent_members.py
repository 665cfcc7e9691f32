"""Members that are absent on the wire: None in objects that the daemon sends, refused as null in requests."""

import msgspec
import pytest

from car_protocol.answer import OneAnswer, Progress
from car_protocol.conversation import FunctionCall, ToolCall
from car_protocol.errors import ErrorObject, RpcError
from car_protocol.infer import InferParams
from car_protocol.params import decode_params
from car_protocol.status import ClusterStatus

CALL = ToolCall("a", FunctionCall("f", "{}"))


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (CALL, b'{"id":"a","function":{"name":"f","arguments":"{}"},"type":"function"}'),
        (OneAnswer(finish_reason="stop"), b'{"finish_reason":"stop"}'),
        (OneAnswer(text="", finish_reason="stop", tokens=[]), b'{"text":"","finish_reason":"stop","tokens":[]}'),
        (
            ClusterStatus(address="h:1", placer_pid=None, ray=None),
            b'{"address":"h:1","placer_pid":null,"ray":null,"nodes":[]}',
        ),
        (ErrorObject(1, "a"), b'{"code":1,"message":"a"}'),
        (Progress(1, "queued", position=0, eta_ms=None), b'{"id":1,"phase":"queued","position":0,"eta_ms":null}'),
        (
            Progress(1, "prefill", done=1, total=2, cached=0),
            b'{"id":1,"phase":"prefill","done":1,"total":2,"cached":0}',
        ),
    ],
)
def test_a_member_without_a_value_is_left_out_and_an_empty_value_is_sent(sent: msgspec.Struct, text: bytes) -> None:
    assert msgspec.json.encode(sent) == text
    assert msgspec.json.decode(text, type=type(sent)) == sent


@pytest.mark.parametrize("member", ["temperature", "top_p", "reasoning"])
def test_null_is_refused_for_an_option_that_has_no_null(member: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, b'{"prompt":"a","%s":null}' % member.encode())
    assert caught.value.data["param"] == member


@pytest.mark.parametrize("member", ["tool_calls", "tool_call_id", "name"])
def test_null_is_refused_for_a_member_of_a_message_that_has_no_null(member: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, b'{"messages":[{"role":"user","content":"a","%s":null}]}' % member.encode())
    assert caught.value.data["param"] == "messages"
