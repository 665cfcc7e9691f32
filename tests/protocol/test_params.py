"""Params: every fault is an error that names the member."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_protocol.capacity import CapacityParams
from car_protocol.errors import RpcError
from car_protocol.infer import CancelParams, InferParams, NoParams
from car_protocol.params import decode_params, invalid_param
from car_protocol.text import DetokenizeParams, EmbedParams, RerankParams, TokenizeParams

MESSAGE = b'{"role":"user","content":"a"}'


def fault(kind: type[msgspec.Struct], text: bytes) -> str:
    """Return the member that an `invalid_params` error names."""
    with pytest.raises(RpcError) as caught:
        decode_params(kind, text)
    assert caught.value.reason == "invalid_params"
    return str(caught.value.data["param"])


@pytest.mark.parametrize(
    ("kind", "text", "member"),
    [
        (InferParams, b'{"prompt":1}', "prompt"),
        (InferParams, b'{"prompt":"a","seed":"1"}', "seed"),
        (InferParams, b'{"prompt":"a","seed":1.0}', "seed"),
        (InferParams, b'{"prompt":"a","seed":' + b"9" * 5000 + b"}", "seed"),
        (InferParams, b'{"prompt":"a","temperature":"hot"}', "temperature"),
        (InferParams, b'{"prompt":"a","temperature":null}', "temperature"),
        (InferParams, b'{"prompt":"a","temperature":1e999}', "temperature"),
        (InferParams, b'{"prompt":"a","wait":1}', "wait"),
        (InferParams, b'{"prompt":"a","priority":"urgent"}', "priority"),
        (InferParams, b'{"prompt":"a","stop":"a"}', "stop"),
        (InferParams, b'{"prompt":"a","stop":["a",1]}', "stop"),
        (InferParams, b'{"prompt":"a","nonsense":1}', "nonsense"),
        (InferParams, b'{"prompt":"a","nonsense":1e999}', "nonsense"),
        (InferParams, b'{"prompt":"a","_meta":1}', "_meta"),
        (InferParams, b'{"tokens":[1,-1]}', "tokens"),
        (InferParams, b'{"tokens":[1.5]}', "tokens"),
        (InferParams, b'{"tokens":{}}', "tokens"),
        (InferParams, b'{"messages":[{"role":"user"}]}', "messages"),
        (InferParams, b'{"messages":[{"role":"user","content":1}]}', "messages"),
        (InferParams, b'{"messages":[{"role":"user","content":"a","nick":"b"}]}', "messages"),
        (InferParams, b'{"messages":[{"role":"user","content":[{"type":"audio"}]}]}', "messages"),
        (InferParams, b'{"messages":[{"role":"user","content":[{"type":"text"}]}]}', "messages"),
        (InferParams, b"{}", "prompt"),
        (InferParams, b"", "prompt"),
        (InferParams, b'{"prompt":"a","tokens":[1]}', "tokens"),
        (InferParams, b'{"prompt":"a","messages":[' + MESSAGE + b"]}", "messages"),
        (InferParams, b'{"tokens":[1],"messages":[' + MESSAGE + b"]}", "messages"),
        (InferParams, b'{"tokens":[1],"parse_special":true}', "parse_special"),
        (InferParams, b'{"prompt":"a","stop":["' + b"a" * 257 + b'"]}', "stop"),
        (InferParams, b'{"prompt":"a","stop":["' + "é".encode() * 129 + b'"]}', "stop"),
        (InferParams, b'{"prompt":"a","client":"' + "é".encode() * 33 + b'"}', "client"),
        (InferParams, b'{"prompt":"a","tenant":"' + "é".encode() * 33 + b'"}', "tenant"),
        (EmbedParams, b'{"input":["a"],"tenant":"' + "é".encode() * 33 + b'"}', "tenant"),
        (RerankParams, b'{"query":"a","documents":["a"],"tenant":"' + "é".encode() * 33 + b'"}', "tenant"),
        (TokenizeParams, b"{}", "text"),
        (TokenizeParams, b'{"text":"a","messages":[' + MESSAGE + b"]}", "messages"),
        (TokenizeParams, b'{"text":"a","template_args":{"b":1}}', "template_args"),
        (TokenizeParams, b'{"add_special":true,"messages":[' + MESSAGE + b"]}", "add_special"),
        (InferParams, b'{"prompt":"a","continue_last":true}', "continue_last"),
        (InferParams, b'{"continue_last":true,"messages":[' + MESSAGE + b"]}", "continue_last"),
        (TokenizeParams, b'{"continue_last":true,"messages":[' + MESSAGE + b"]}", "continue_last"),
        (InferParams, b'{"tokens":[1],"suffix":"a"}', "suffix"),
        (InferParams, b"[]", ""),
        (InferParams, b'["a"]', ""),
        (InferParams, b"1", ""),
        (InferParams, b"null", ""),
        (CapacityParams, b'{"subscribe":1}', "subscribe"),
        (CapacityParams, b'{"models":"a"}', "models"),
        (CancelParams, b"{}", "id"),
        (CancelParams, b'{"id":1.5}', "id"),
        (CancelParams, b'{"id":null}', "id"),
        (NoParams, b'{"a":1}', "a"),
        (TokenizeParams, b'{"text":"a","add_special":0}', "add_special"),
        (DetokenizeParams, b'{"tokens":[-1]}', "tokens"),
        (DetokenizeParams, b'{"tokens":["a"]}', "tokens"),
    ],
)
def test_a_fault_names_its_member(kind: type[msgspec.Struct], text: bytes, member: str) -> None:
    assert fault(kind, text) == member


@pytest.mark.parametrize(
    "text",
    [
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"a","_meta":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
)
def test_text_that_is_no_utf8_or_nests_too_deep_is_a_parse_error(text: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, text)
    assert caught.value.reason == "parse_error"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"prompt":"a","max_tokens":0}', "Expected `int` >= 1"),
        (b'{"prompt":"a","person":"a b"}', "name a person by up to 64 letters, digits, `_`, `.` and `-`"),
        (b'{"messages":[{"role":"a b","content":""}]}', "write a role of up to 32 letters, digits, `_` and `-`"),
        (b'{"prompt":"a","stop":[""]}', "Expected `str` of length >= 1"),
        (b'{"prompt":"a","priority":"SECRET"}', 'Invalid enum value: write "latency_critical" or "throughput"'),
        (b'{"prompt":"a","tool_choice":"SECRET"}', 'Invalid enum value: write "auto" or "none" or "required"'),
        (b'{"prompt":"a","tools":[{"type":"SECRET"}]}', 'Invalid enum value: write "function"'),
        (
            b'{"messages":[{"role":"user","content":[{"type":"SECRET - at `$.x`"}]}]}',
            "Invalid value: write text or image or audio",
        ),
        (b'{"prompt":"a","priority":"it\'s SECRET"}', 'Invalid enum value: write "latency_critical" or "throughput"'),
        (
            b'{"prompt":"a","priority":"' + b"value '" * 20_000 + b'"}',
            'Invalid enum value: write "latency_critical" or "throughput"',
        ),
        (
            b'{"prompt":"a","priority":" - at `$.' + b"a" * 200_000 + b'`x"}',
            'Invalid enum value: write "latency_critical" or "throughput"',
        ),
        (b"{}", "give exactly one of prompt, tokens, messages"),
        (b'{"prompt":"a","json_schema":{"minimum":1e999}}', "Number out of range"),
    ],
)
def test_a_fault_says_what_was_expected_and_repeats_no_value(text: bytes, why: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_params(InferParams, text)
    assert caught.value.data["why"] == why
    assert "SECRET" not in str(caught.value.data)


def test_limits_in_bytes_count_bytes() -> None:
    text = '{"prompt":"a","stop":["' + "é" * 128 + '"],"client":"' + "é" * 32 + '"}'
    params = decode_params(InferParams, text.encode())
    assert (len(params.stop[0]), len(params.client or "")) == (128, 32)


def test_absent_params_are_an_empty_object() -> None:
    assert decode_params(NoParams, b"") == NoParams()
    assert decode_params(CapacityParams, b"") == CapacityParams()


def test_meta_may_hold_anything() -> None:
    params = decode_params(InferParams, b'{"prompt":"a","_meta":{"traceparent":"00","x":[{}],"y":1e999}}')
    assert set(params.meta) == {"traceparent", "x", "y"}


def test_a_message_s_text_is_that_of_its_parts() -> None:
    text = b'{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}'
    params = decode_params(InferParams, text)
    assert params.messages is not None
    assert params.messages[0].text == "ab"
    assert decode_params(InferParams, b'{"messages":[' + MESSAGE + b"]}").messages is not None


def test_a_name_is_cut_before_it_goes_into_an_error() -> None:
    name = "a" * 1000
    assert fault(NoParams, msgspec.json.encode({name: 1})) == "a" * 128
    assert invalid_param(name).data == {"param": "a" * 128}


@given(st.binary() | st.dictionaries(st.text(), st.text()).map(repr).map(str.encode))
def test_no_bytes_raise_anything_but_an_error_of_the_table(text: bytes) -> None:
    try:
        decode_params(InferParams, text)
    except RpcError as error:
        assert error.reason in ("invalid_params", "parse_error")  # noqa: PT017 - either outcome is right
