"""The envelope: what is a request, what is none, and how answers look."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_protocol.envelope import (
    Batch,
    Call,
    Failure,
    Id,
    Notification,
    Request,
    Result,
    decode_frame,
    decode_incoming,
    encode_message,
    join_batch,
)
from car_protocol.errors import RpcError
from car_protocol.limits import MAX_BATCH, MAX_MEMBERS
from car_protocol.params import decode_params
from car_protocol.text import TokenizeParams


def request(**members: Any) -> bytes:
    """Return a request's frame with these members."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "infer", **members})


def raw_id(text: str) -> bytes:
    """Return a request's frame with this text as its id."""
    return b'{"jsonrpc":"2.0","method":"infer","id":' + text.encode() + b"}"


def reason(frame: bytes) -> str:
    """Return why a frame is refused as a whole."""
    with pytest.raises(RpcError) as caught:
        decode_frame(frame)
    return caught.value.reason


def entries(frame: bytes) -> list[Call | RpcError]:
    """Return the entries of a batch."""
    batch = decode_frame(frame)
    assert isinstance(batch, Batch)
    return batch.entries


def test_a_request_has_its_method_id_and_params_as_text() -> None:
    assert decode_frame(request(id=1, params={"a": [1, 2]})) == Call("infer", 1, b'{"a":[1,2]}')


def test_params_may_be_absent_and_are_not_judged_here() -> None:
    assert decode_frame(request(id=1)) == Call("infer", 1, b"")
    assert decode_frame(request(id=1, params=[1])) == Call("infer", 1, b"[1]")


def test_a_request_without_an_id_is_a_notification() -> None:
    assert decode_frame(request(params={"id": 1})) == Call("infer", None, b'{"id":1}')


def test_unknown_members_are_ignored() -> None:
    assert decode_frame(request(id=1, _meta={"a": 1}, more=None)) == Call("infer", 1, b"")


def test_white_space_around_a_request_is_allowed() -> None:
    assert decode_frame(b" \t" + request(id=1) + b"\t ") == Call("infer", 1, b"")


def test_of_a_member_given_twice_the_last_counts() -> None:
    assert decode_frame(b'{"jsonrpc":"2.0","method":"a","method":"b","id":1,"id":2}') == Call("b", 2, b"")


@pytest.mark.parametrize("call_id", ["", "a", "é", "a" * 128, "é" * 64, "1", 0, 1, -1, 2**53 - 1, 1 - 2**53])
def test_ids_within_the_rules_are_taken_and_echoed(call_id: Id) -> None:
    call = decode_frame(request(id=call_id))
    assert isinstance(call, Call)
    assert call.id is not None
    assert (call.id, type(call.id)) == (call_id, type(call_id))
    assert msgspec.json.decode(encode_message(Result(call.id, {})))["id"] == call_id


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "true",
        "false",
        "1.0",
        "0.5",
        "1e2",
        "-1.0",
        "1E0",
        "9007199254740992",
        "-9007199254740992",
        "1" * 30,
        "1" * 5000,
        "1e999",
        "[]",
        "[1]",
        "{}",
        '{"a":1}',
        '"' + "a" * 129 + '"',
        '"' + "é" * 65 + '"',
    ],
)
def test_other_ids_are_an_invalid_request(text: str) -> None:
    assert reason(raw_id(text)) == "invalid_request"


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00a"', "01", "+1", "1.", ".5", "0x1", "NaN", "'a'", '"a'])
def test_ids_that_are_no_json_are_a_parse_error(text: str) -> None:
    assert reason(raw_id(text)) == "parse_error"


@pytest.mark.parametrize(
    "frame",
    [
        b"1",
        b'"text"',
        b"null",
        b"true",
        b"1e999",
        b"{}",
        request(jsonrpc="1.0", id=1),
        request(jsonrpc=2.0, id=1),
        request(jsonrpc=None, id=1),
        b'{"method":"infer","id":1}',
        b'{"jsonrpc":"2.0","id":1}',
        request(method=1, id=1),
        request(method=None, id=1),
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"a"}}',
        b'{"jsonrpc":"1.0","method":"infer","id":1,"params":{"a":1e999}}',
    ],
)
def test_json_that_is_no_request_is_an_invalid_request(frame: bytes) -> None:
    assert reason(frame) == "invalid_request"


NO_JSON = [
    b"",
    b"nonsense",
    b"{",
    b"[1",
    b"[1e999",
    b'{"jsonrpc":"2.0","method":"infer","id":1',
    request(id=1) + b"}",
    request(id=1) + request(id=2),
    b"\xef\xbb\xbf" + request(id=1),
    request(id=1) + b"\x00",
    b'{"jsonrpc":"2.0","method":"in\x00fer","id":1}',
    b'{"jsonrpc":"2.0","method":"\xff","id":1}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":{"prompt":"\xff"}}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":{"prompt":"\xed\xa0\x80"}}',
    b'[{"jsonrpc":"2.0","method":"infer","id":1,"params":{"prompt":"\xc3"}}]',
    b'{"jsonrpc":"2.0","method":"\\ud800","id":1}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":{"prompt":"\\ud800"}}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":NaN}',
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":{"a":Infinity}}',
    b"{'jsonrpc':'2.0'}",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"jsonrpc":"2.0","method":"infer","id":1,"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("frame", NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_a_parse_error(frame: bytes) -> None:
    assert reason(frame) == "parse_error"


@pytest.mark.parametrize("count", [1, 2, MAX_BATCH])
def test_a_batch_has_its_entries_in_order(count: int) -> None:
    frame = b"[" + b",".join(request(id=number) for number in range(count)) + b"]"
    assert entries(frame) == [Call("infer", number, b"") for number in range(count)]


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1, 1000])
def test_an_empty_or_too_long_batch_is_one_invalid_request(count: int) -> None:
    assert reason(b"[" + b",".join([request(id=1)] * count) + b"]") == "invalid_request"


@pytest.mark.parametrize(
    "entry",
    [b"1", b"null", b'"a"', b"[]", b"[" + request(id=1) + b"]", b"{}", raw_id("null"), raw_id("1e999"), b"1e999"],
)
def test_an_entry_that_is_no_request_fails_alone(entry: bytes) -> None:
    first, second, third = entries(b"[" + request(id=1) + b"," + entry + b"," + request(id=3) + b"]")
    assert isinstance(second, RpcError)
    assert second.reason == "invalid_request"
    assert [first, third] == [Call("infer", 1, b""), Call("infer", 3, b"")]


def test_an_overflowing_number_in_one_entry_leaves_the_others_alone() -> None:
    batch = b'[{"jsonrpc":"2.0","method":"infer","id":1,"params":{"a":1e999}},' + request(id=2) + b"]"
    assert entries(batch) == [Call("infer", 1, b'{"a":1e999}'), Call("infer", 2, b"")]


def test_a_batch_may_hold_notifications_and_white_space() -> None:
    assert entries(b" [ " + request() + b" , " + request(id=1) + b" ] ") == [
        Call("infer", None, b""),
        Call("infer", 1, b""),
    ]


@pytest.mark.parametrize(
    "frame", [b"[", b"[{}", b"[{},]", b"[{} {}]", b"[{}]]", b"[\xff]", b'["\\ud800"]', b"[" + raw_id("01") + b"]"]
)
def test_a_batch_that_is_no_json_is_one_parse_error(frame: bytes) -> None:
    assert reason(frame) == "parse_error"


def test_messages_are_one_line_each_with_its_end() -> None:
    error = RpcError("limit", limit="max_in_flight", value=64).as_object()
    assert encode_message(Result(1, {"text": "a\nb"})) == b'{"id":1,"result":{"text":"a\\nb"},"jsonrpc":"2.0"}\n'
    assert encode_message(Failure(None, error)).startswith(b'{"id":null,"error":{"code":1008,')
    assert encode_message(Notification("n", {"a": 1})) == b'{"method":"n","params":{"a":1},"jsonrpc":"2.0"}\n'
    assert encode_message(Request("2.0", "m", 1, {})) == b'{"jsonrpc":"2.0","method":"m","id":1,"params":{}}\n'
    assert encode_message(Request("2.0", "m")) == b'{"jsonrpc":"2.0","method":"m"}\n'


def test_a_batch_s_answers_are_one_array() -> None:
    line = join_batch([encode_message(Result(1, {})), encode_message(Failure(2, RpcError("cancelled").as_object()))])
    assert line.index(b"\n") == len(line) - 1
    assert [answer["id"] for answer in msgspec.json.decode(line)] == [1, 2]


def test_a_client_reads_results_errors_and_notifications() -> None:
    result = decode_incoming(encode_message(Result("a", {"text": "b"})))
    assert (result.id, bytes(result.result), result.error, result.method) == ("a", b'{"text":"b"}', None, None)
    failure = decode_incoming(encode_message(Failure(None, RpcError("parse_error").as_object())))
    assert failure.error is not None
    assert (failure.id, failure.error.code, bytes(failure.result)) == (None, -32700, b"")
    told = decode_incoming(encode_message(Notification("n", {"a": 1})))
    assert (told.id, told.method, bytes(told.params)) == (None, "n", b'{"a":1}')


IDS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=32), st.integers(1 - 2**53, 2**53 - 1))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(IDS, st.text(st.characters(exclude_categories=["Cs"])))
def test_what_a_client_encodes_is_what_the_daemon_decodes(call_id: Id, method: str) -> None:
    frame = encode_message(Request("2.0", method, call_id, {"a": 1}))
    assert frame.index(b"\n") == len(frame) - 1
    assert decode_frame(frame) == Call(method, call_id, b'{"a":1}')


@given(st.binary() | st.text(alphabet='{}[]",:0123456789.eE+-nulltrue \\ud8').map(str.encode))
def test_no_bytes_raise_anything_but_an_error_of_the_table(frame: bytes) -> None:
    try:
        decode_frame(frame)
    except RpcError as error:
        assert error.reason in ("parse_error", "invalid_request")  # noqa: PT017 - either outcome is right


@given(st.dictionaries(st.sampled_from(["jsonrpc", "method", "id", "params"]), JSON) | JSON)
def test_no_json_is_ever_a_parse_error(value: Any) -> None:
    try:
        frame = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8
    try:
        decode_frame(frame)
    except RpcError as error:
        assert error.reason == "invalid_request"  # noqa: PT017 - either outcome is right


MANY = {
    "arrays": b"[" + b",".join([b"[]"] * (MAX_MEMBERS + 1)) + b"]",
    "objects": b"[" + b",".join([b"{}"] * (MAX_MEMBERS + 1)) + b"]",
    "members": b"{" + b",".join([b'"\\":[{":1'] * (MAX_MEMBERS + 1)) + b"}",
    "texts": b"[" + b",".join([b'"\\"a"'] * (MAX_MEMBERS + 1)) + b"]",
    "texts and arrays": b"[" + b",".join([b'"a",[]'] * (MAX_MEMBERS // 2 + 1)) + b"]",
}


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
@pytest.mark.parametrize(
    "frame",
    [
        b"%s",
        b'[{"jsonrpc":"2.0","method":"tokenize","id":1,"params":%s}]',
        b'{"jsonrpc":"2.0","id":1,"params":%s}',
        b'{"jsonrpc":"2.0","method":[%s],"id":1}',
    ],
    ids=["alone", "in a batch", "without a method", "as a method"],
)
def test_a_frame_of_too_many_values_is_refused_before_they_are_decoded(frame: bytes, value: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        decode_frame(frame % value)
    assert (caught.value.reason, caught.value.data) == ("limit", {"limit": "max_members", "value": MAX_MEMBERS})


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
def test_params_of_too_many_values_are_refused_with_their_id(value: bytes) -> None:
    call = decode_frame(b'{"jsonrpc":"2.0","method":"tokenize","id":7,"params":{"text":"","_meta":%s}}' % value)
    assert isinstance(call, Call)
    assert call.id == 7
    with pytest.raises(RpcError) as caught:
        decode_params(TokenizeParams, call.params)
    assert caught.value.data == {"limit": "max_members", "value": MAX_MEMBERS}


@pytest.mark.parametrize(
    "text", ["{" * (2 * MAX_MEMBERS), '"[:{' * MAX_MEMBERS, '\\"[' * MAX_MEMBERS, "\\" * MAX_MEMBERS]
)
def test_brackets_in_a_text_count_for_nothing(text: str) -> None:
    assert decode_params(TokenizeParams, msgspec.json.encode({"text": text})).text == text


def test_strings_without_an_end_are_read_once() -> None:
    """Not once from each of their quotes, which would take hours."""
    assert reason(b'{"jsonrpc":"2.0","a":"' + b'\\"{' * (20 * MAX_MEMBERS)) == "parse_error"


def test_an_id_of_a_million_bytes_or_objects_is_refused_unread() -> None:
    assert reason(raw_id('"' + "a" * 1_000_000 + '"')) == "invalid_request"
    assert reason(raw_id("[" + "[]," * 1_000_000 + "[]]")) == "invalid_request"
    assert decode_frame(raw_id('"' + r"\u0041" * 128 + '"')) == Call("infer", "A" * 128, b"")
