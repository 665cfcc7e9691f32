"""The session without I/O: the frames that it makes, and the calls that received frames reach."""

from typing import Any

import msgspec
import pytest

from car_client.errors import DaemonUnavailable, LimitReached, Overloaded, ProtocolError, RequestCancelled, RequestError
from car_client.results import Answer
from car_client.transport import protocol_session as session_module
from car_client.transport.protocol_session import PendingCall, ProtocolSession
from car_protocol.errors import RpcError
from car_protocol.text import Text
from tests.client.samples import ANSWER, capacity


def frame(**members: Any) -> bytes:
    """Return one message as a daemon sends it."""
    return msgspec.json.encode({"jsonrpc": "2.0", **members}) + b"\n"


def chunk(call: PendingCall, seq: int, text: str = "a") -> bytes:
    """Return one chunk of a stream."""
    return frame(method="infer_stream/chunk", params={"id": call.id, "seq": seq, "text": text})


def end(call: PendingCall, chunks: int) -> bytes:
    """Return the answer that ends a stream."""
    return frame(id=call.id, result=ANSWER | {"chunks": chunks})


def test_a_request_is_one_line_of_json_rpc() -> None:
    call = ProtocolSession().begin("tokenize", {"text": "a\nb"})
    assert call.frame == b'{"jsonrpc":"2.0","method":"tokenize","id":1,"params":{"text":"a\\nb"}}\n'


def test_ids_are_never_used_twice() -> None:
    session = ProtocolSession()
    assert len({session.begin("models/list", None).id for _ in range(100)}) == 100


def test_answers_in_any_order_reach_their_own_requests() -> None:
    session = ProtocolSession()
    first, second = session.begin("detokenize", {}), session.begin("detokenize", {})
    session.receive(frame(id=second.id, result={"text": "second"}) + frame(id=first.id, result={"text": "first"}))
    assert first.read(Text).text == "first"
    assert second.read(Text).text == "second"


def test_an_answer_may_come_byte_by_byte() -> None:
    session = ProtocolSession()
    call = session.begin("detokenize", {})
    for byte in frame(id=call.id, result={"text": "é"}):
        assert call.idle
        session.receive(bytes([byte]))
    assert call.read(Text).text == "é"


@pytest.mark.parametrize("reason", ["parse_error", "invalid_request"])
def test_a_request_that_the_daemon_cannot_read_ends_with_what_it_says(reason: str) -> None:
    session = ProtocolSession()
    call = session.begin("detokenize", {})
    session.receive(frame(id=None, error=msgspec.to_builtins(RpcError(reason).as_object())))
    with pytest.raises(RequestError, match=str(RpcError(reason))):
        call.read(Text)
    assert session.loss is None


def test_where_it_may_be_any_of_several_the_connection_is_of_no_use() -> None:
    session = ProtocolSession()
    session.begin("detokenize", {})
    session.begin("detokenize", {})
    with pytest.raises(ProtocolError, match="could not read a request"):
        session.receive(frame(id=None, error=msgspec.to_builtins(RpcError("parse_error").as_object())))


def test_an_error_raises_the_class_of_its_reason() -> None:
    session = ProtocolSession()
    call = session.begin("infer", {})
    error = RpcError("overloaded", why="queue full", retry_after_ms=40).as_object()
    session.receive(frame(id=call.id, error=msgspec.to_builtins(error)))
    with pytest.raises(Overloaded) as caught:
        call.read(Answer)
    assert caught.value.retry_after_ms == 40


def test_capacity_is_one_before_the_answer_and_the_answer_after_it() -> None:
    session = ProtocolSession()
    greeting = session.greet()
    assert (session.capacity, session.greeted) == (1, False)
    session.receive(frame(id=greeting.id, result=capacity(6)))
    assert (session.capacity, session.greeted) == (6, True)


def test_a_notification_refreshes_the_capacity() -> None:
    session = ProtocolSession()
    session.receive(frame(id=session.greet().id, result=capacity(6)))
    session.receive(frame(method="inference/capacity_changed", params=capacity(2, generation=1)))
    assert session.capacity == 2


def test_a_lost_connection_fails_what_is_in_flight_and_forgets_the_capacity() -> None:
    session = ProtocolSession()
    session.receive(frame(id=session.greet().id, result=capacity(6)))
    call = session.begin("infer", {})
    session.lose()
    assert session.capacity == 1
    with pytest.raises(DaemonUnavailable):
        call.read(Answer)


def test_a_request_after_the_loss_fails_at_once() -> None:
    session = ProtocolSession()
    session.lose()
    assert not session.begin("infer", {}).idle


def test_what_the_daemon_said_before_it_closed_is_the_reason() -> None:
    session = ProtocolSession()
    call = session.begin("infer", {})
    error = RpcError("limit", limit="max_connections", value=1024).as_object()
    session.receive(frame(id=None, error=msgspec.to_builtins(error)))
    session.lose()
    with pytest.raises(LimitReached) as caught:
        call.read(Answer)
    assert caught.value.data["limit"] == "max_connections"


def test_chunks_come_out_in_order_and_the_answer_proves_that_none_is_missing() -> None:
    session = ProtocolSession()
    stream = session.begin("infer_stream", {})
    session.receive(chunk(stream, 0, "Hel") + chunk(stream, 1, "lo") + end(stream, 2))
    assert [piece.text for piece in stream.chunks] == ["Hel", "lo"]
    assert stream.read_stream().chunks == 2


@pytest.mark.parametrize("numbers", [[1], [0, 2], [0, 0], [0, 1, 1], [0, 2, 1]])
def test_a_gap_between_chunks_fails_the_stream(numbers: list[int]) -> None:
    session = ProtocolSession()
    stream = session.begin("infer_stream", {})
    session.receive(b"".join(chunk(stream, number) for number in numbers) + end(stream, len(numbers)))
    with pytest.raises(ProtocolError):
        stream.read_stream()


@pytest.mark.parametrize("claimed", [0, 1, 3])
def test_another_count_of_chunks_fails_the_stream(claimed: int) -> None:
    session = ProtocolSession()
    stream = session.begin("infer_stream", {})
    session.receive(chunk(stream, 0) + chunk(stream, 1) + end(stream, claimed))
    with pytest.raises(ProtocolError):
        stream.read_stream()


def test_cancelling_names_the_request_and_an_ended_one_needs_none() -> None:
    session = ProtocolSession()
    call = session.begin("infer", {})
    assert session.due() == call.frame
    assert session.cancel(call) == b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}\n'
    session.receive(frame(id=call.id, result=ANSWER))
    assert session.cancel(call) == b""


def test_calls_beyond_the_daemons_bound_are_sent_in_their_order_as_answers_come() -> None:
    session = ProtocolSession()
    declared = capacity()
    declared["limits"]["max_in_flight"] = 2
    greeting = session.greet()
    session.due()
    session.receive(frame(id=greeting.id, result=declared))
    calls = [session.begin("detokenize", {}) for _ in range(4)]
    assert session.due() == calls[0].frame + calls[1].frame
    assert session.due() == b""
    session.receive(frame(id=calls[1].id, result={"text": ""}))
    assert session.due() == calls[2].frame
    session.receive(frame(id=calls[0].id, result={"text": ""}) + frame(id=calls[2].id, result={"text": ""}))
    assert session.due() == calls[3].frame


def test_a_call_that_is_answered_at_once_passes_calls_that_wait_for_a_place() -> None:
    session = ProtocolSession()
    for _ in range(65):
        session.begin("infer", {})
    session.due()
    status = session.begin("daemon/status", {})
    assert session.due() == status.frame


def test_a_call_that_was_not_sent_is_cancelled_without_the_daemon() -> None:
    session = ProtocolSession()
    calls = [session.begin("infer", {}) for _ in range(65)]
    session.due()
    assert session.cancel(calls[64]) == b""
    with pytest.raises(RequestCancelled):
        calls[64].read(Answer)
    session.receive(frame(id=calls[0].id, result=ANSWER))
    assert session.due() == b""


def test_a_frame_that_the_daemon_would_refuse_is_not_sent() -> None:
    session = ProtocolSession()
    with pytest.raises(LimitReached) as caught:
        session.begin("infer", {"prompt": "a" * 8 * 1024 * 1024})
    assert caught.value.data["value"] == 8 * 1024 * 1024
    assert session.begin("infer", {"prompt": "a" * 8 * 1024 * 1000}).idle


def test_the_declared_frame_limit_counts() -> None:
    session = ProtocolSession()
    declared = capacity()
    declared["limits"]["max_frame_bytes"] = 100
    session.receive(frame(id=session.greet().id, result=declared))
    with pytest.raises(LimitReached):
        session.begin("infer", {"prompt": "a" * 100})


def test_unknown_notifications_members_and_ids_do_no_harm() -> None:
    session = ProtocolSession()
    call = session.begin("detokenize", {})
    session.receive(frame(method="models/moved", params={"id": 1}) + frame(id="x", result={}))
    session.receive(frame(id=call.id, result={"text": "a", "new": 1}, later=True))
    assert call.read(Text).text == "a"


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[]\n",
        b'{"id":1.5}\n',
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        frame(method="infer_stream/chunk", params={"id": 1}),
        frame(method="inference/capacity_changed", params={}),
    ],
)
def test_a_frame_that_is_no_message_breaks_the_contract(line: bytes) -> None:
    session = ProtocolSession()
    session.begin("infer_stream", {})
    with pytest.raises(ProtocolError):
        session.receive(line)


def test_a_frame_without_end_breaks_the_contract() -> None:
    session = ProtocolSession()
    with pytest.raises(ProtocolError):
        session.receive(b"a" * (session_module.MAX_INCOMING_BYTES + 2))


@pytest.mark.parametrize("members", [{}, {"result": {"txt": 1}}, {"result": []}])
def test_a_result_of_another_shape_fails_only_its_request(members: dict[str, Any]) -> None:
    session = ProtocolSession()
    bad, good = session.begin("detokenize", {}), session.begin("detokenize", {})
    session.receive(frame(id=bad.id, **members) + frame(id=good.id, result={"text": "a"}))
    with pytest.raises(ProtocolError):
        bad.read(Text)
    assert good.read(Text).text == "a"


def test_an_error_without_data_is_a_plain_request_error() -> None:
    session = ProtocolSession()
    call = session.begin("infer", {})
    session.receive(frame(id=call.id, error={"code": -32000, "message": "what"}))
    with pytest.raises(RequestError, match="what") as caught:
        call.read(Answer)
    assert (caught.value.code, caught.value.reason, caught.value.retryable) == (-32000, "", False)


def test_progress_of_a_load_reaches_the_call_that_requested_it() -> None:
    session = ProtocolSession()
    heard: list[tuple[int, int]] = []
    loading = session.begin(
        "models/load", {}, on_progress=lambda progress: heard.append((progress.done, progress.total))
    )
    other = session.begin("models/load", {})
    for call, done in ((loading, 5), (other, 6), (loading, 10)):
        params = {"id": call.id, "model": "m", "done": done, "total": 10}
        session.receive(frame(method="models/progress", params=params))
    session.receive(frame(id=loading.id, result={"text": ""}))
    session.receive(frame(method="models/progress", params={"id": loading.id, "model": "m", "done": 1, "total": 10}))
    assert heard == [(5, 10), (10, 10)]
