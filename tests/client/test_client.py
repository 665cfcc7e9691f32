"""The blocking client: the same promises without an event loop."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from car_client import (
    Client,
    DaemonUnavailable,
    Function,
    LimitReached,
    RequestCancelled,
    Tool,
)
from car_client.transport.blocking_connection import BlockingReconnector
from car_protocol.errors import RpcError
from tests.client.carctl.command import until_waiting
from tests.client.fake_daemon import FakeDaemon, once_asked
from tests.client.samples import ANSWER, model


@pytest.fixture
def endless(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon whose streams fall silent after one chunk."""
    daemon.silent_after = 1
    return daemon


def cancelled(daemon: FakeDaemon) -> bool:
    """Wait for a cancellation; return whether it named the first stream."""
    asked = daemon.wait_for("infer_stream")
    daemon.wait_for("$/cancelRequest")
    return bool(daemon.params("$/cancelRequest") == {"id": asked.id})


def interrupt() -> None:
    """Do what Ctrl-C does to the main thread once it waits."""
    until_waiting(os.getpid())
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_tools_are_plain_data_or_objects(daemon: FakeDaemon) -> None:
    plain: list[dict[str, Any]] = [{"type": "function", "function": {"name": "time", "parameters": {}}}]
    for tools in (plain, tuple(plain), [Tool("function", Function("time"))]):
        with Client(daemon.path) as client:
            client.infer(messages=[{"role": "user", "content": "Hi"}], tools=tools, tool_choice={"name": "time"})
        sent = daemon.params("infer")
        assert sent["tools"][0]["function"]["name"] == "time"
        assert sent["tool_choice"] == {"name": "time"}


def test_capacity_is_one_until_the_daemon_answered(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        assert client.capacity == 1
        client.connect()
        assert client.capacity == 4


def test_capacity_is_one_again_after_a_loss(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        client.connect()
        daemon.drop()
        daemon.wait_until_gone()
        assert client.capacity == 1


def test_the_next_request_after_a_loss_connects_again(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        client.connect()
        daemon.drop()
        daemon.wait_until_gone()
        assert client.infer("Hi").text == "Hello"
    assert daemon.accepted == 2


def test_a_closed_client_connects_again(daemon: FakeDaemon) -> None:
    client = Client(daemon.path)
    client.connect()
    client.close()
    client.close()
    assert client.infer("Hi").text == "Hello"
    client.close()


def test_without_retries_a_connection_lost_in_flight_is_an_error_and_nothing_is_sent_twice(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    with (
        Client(daemon.path, max_retries=0) as client,
        once_asked(daemon, "infer", daemon.drop),
        pytest.raises(DaemonUnavailable, match="lost"),
    ):
        client.infer("Hi")
    assert [call.method for call in daemon.calls].count("infer") == 1


def test_no_daemon_is_an_error_at_once_with_a_connect_timeout_of_0(path: Path) -> None:
    with Client(path, connect_timeout=0) as client:
        assert client.capacity == 1
        with pytest.raises(DaemonUnavailable) as caught:
            client.infer("Hi")
    assert caught.value.tried == (path,)


def test_a_path_without_a_listener_is_an_error(path: Path) -> None:
    path.write_text("no socket")
    with (
        Client(path, connect_timeout=0) as client,
        pytest.raises(DaemonUnavailable, match="not a socket"),
    ):
        client.connect()


def test_the_second_path_is_tried_when_the_first_is_dead(daemon: FakeDaemon) -> None:
    connection = BlockingReconnector([daemon.path.parent / "nothing", daemon.path], time.sleep).ready(0)
    connection.close()


def test_a_refused_connection_says_why(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    daemon.silent.add("infer")
    with Client(daemon.path) as client, pytest.raises(LimitReached):
        client.infer("Hi")


def test_megabytes_go_and_come_whole(daemon: FakeDaemon) -> None:
    text = "é\n" * 500_000
    daemon.answers["infer"] = ANSWER | {"text": text}
    with Client(daemon.path) as client:
        assert client.infer(text).text == text


def test_break_cancels(endless: FakeDaemon) -> None:
    with Client(endless.path) as client:
        for chunk in client.infer_stream("Hi"):
            assert chunk.text == "Hel"
            break
        assert cancelled(endless)


def test_closing_cancels_and_ends_the_iteration(endless: FakeDaemon) -> None:
    with Client(endless.path) as client:
        stream = client.infer_stream("Hi")
        next(stream)
        stream.close()
        assert cancelled(endless)
        assert list(stream) == []


def test_cancel_ends_the_stream_with_its_error(endless: FakeDaemon) -> None:
    with Client(endless.path) as client:
        stream = client.infer_stream("Hi")
        next(stream)
        stream.cancel()
        with pytest.raises(RequestCancelled):
            next(stream)


def test_a_stream_that_is_cancelled_before_its_first_step_ends_with_that(endless: FakeDaemon) -> None:
    endless.silent_after = 0
    with Client(endless.path) as client:
        stream = client.infer_stream("Hi")
        stream.cancel()
        with pytest.raises(RequestCancelled):
            next(stream)


def test_a_stream_never_begun_does_not_even_connect(endless: FakeDaemon) -> None:
    with Client(endless.path) as client:
        client.infer_stream("Hi").close()
    assert endless.accepted == 0


def test_two_streams_may_be_read_in_turns(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        pairs = zip(client.infer_stream("one"), client.infer_stream("two"), strict=True)
        assert [(one.text, two.text) for one, two in pairs] == [("Hel", "Hel"), ("lo", "lo")]


def test_an_interrupt_cancels_a_request_at_the_daemon(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    with Client(daemon.path) as client:
        with once_asked(daemon, "infer", interrupt), pytest.raises(KeyboardInterrupt):
            client.infer("Hi")
        daemon.wait_for("$/cancelRequest")
        assert client.tokenize("still usable") == [1, 2, 3]


def test_an_interrupt_cancels_a_stream_at_the_daemon(endless: FakeDaemon) -> None:
    with Client(endless.path) as client:
        with once_asked(endless, "infer_stream", interrupt), pytest.raises(KeyboardInterrupt):
            list(client.infer_stream("Hi"))
        assert cancelled(endless)


def test_the_pairs_of_calls_that_change_the_daemon_return_plain_types(daemon: FakeDaemon) -> None:
    daemon.answers |= {
        "models/load": model(),
        "models/unload": model() | {"state": "unloaded"},
        "models/show": {"model": model(), "why": "it is not a GGUF file"},
        "daemon/drain": {"completed": 1, "refused": 0},
        "daemon/reload": {},
    }
    with Client(daemon.path) as client:
        assert client.load_model("guide").loaded_at is None
        assert client.unload_model("guide").state == "unloaded"
        details = client.show_model("guide")
        assert (details.file, details.why) == (None, "it is not a GGUF file")
        client.reload()
        assert client.drain(5000).completed == 1
    assert daemon.params("models/load") == {"model": "guide"}
    assert daemon.params("daemon/drain") == {"timeout_ms": 5000}


def test_the_answer_of_a_stream_has_its_text(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        stream = client.infer_stream("Hi")
        for _ in stream:
            assert stream.answer is None
        assert stream.answer is not None
        assert (stream.answer.text, stream.answer.reasoning) == ("Hello", None)
