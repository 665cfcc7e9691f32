"""`carctl call`: any method of the contract, in JSON."""

from pathlib import Path

import msgspec
import pytest

from car_protocol.errors import RpcError
from car_protocol.methods import METHODS
from tests.client.carctl.command import carctl, carctl_on_pipe, carctl_on_terminal, interrupt
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER


def lines(output: bytes) -> list[object]:
    """Return the JSON values of an output, one a line."""
    return [msgspec.json.decode(line) for line in output.splitlines()]


def test_a_pipe_gets_the_result_in_one_line_with_every_member(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/status"]["something_new"] = True
    done = carctl("--socket", daemon.path, "call", "daemon/status")
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done.stdout) == [daemon.answers["daemon/status"]]


def test_a_terminal_gets_the_result_indented(daemon: FakeDaemon) -> None:
    with carctl_on_terminal("--socket", daemon.path, "call", "tokenize", '{"text": "Hi"}') as terminal:
        shown = terminal.end()
    assert shown.startswith(b'{\n  "tokens": [\n    1,\n')
    assert daemon.params("tokenize") == {"text": "Hi"}


def test_params_come_from_standard_input_and_may_have_several_lines(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "call", "tokenize", "-", input=b'{\n  "text": "H\xc3\xa4"\n}\n')
    assert done.returncode == 0
    assert daemon.params("tokenize") == {"text": "Hä"}


def test_without_params_an_empty_object_is_sent(daemon: FakeDaemon) -> None:
    assert carctl("--socket", daemon.path, "call", "models/list").returncode == 0
    assert daemon.params("models/list") == {}


def test_a_stream_is_a_line_for_each_notification_and_then_the_result(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "call", "infer_stream", '{"prompt":"Hi"}')
    assert done.returncode == 0
    assert lines(done.stdout) == [
        {"method": "infer_stream/chunk", "params": {"id": 1, "seq": 0, "text": "Hel"}},
        {"method": "infer_stream/chunk", "params": {"id": 1, "seq": 1, "text": "lo"}},
        ANSWER | {"chunks": 2},
    ]


def test_an_error_of_the_daemon_is_json_on_standard_error(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = RpcError("overloaded", retry_after_ms=40)
    done = carctl("--socket", daemon.path, "call", "infer", '{"prompt":"Hi"}')
    assert (done.returncode, done.stdout) == (75, b"")
    (error,) = lines(done.stderr)
    assert isinstance(error, dict)
    assert (error["code"], error["data"]["reason"], error["data"]["retry_after_ms"]) == (1001, "overloaded", 40)
    daemon.answers["infer"] = RpcError("invalid_params", param="prompt")
    assert carctl("--socket", daemon.path, "call", "infer", '{"prompt":"Hi"}').returncode == 1


def test_an_error_about_the_whole_connection_is_the_answer_too(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    done = carctl("--socket", daemon.path, "call", "models/list")
    (error,) = lines(done.stderr)
    assert isinstance(error, dict)
    assert (done.returncode, error["data"]["limit"]) == (1, "max_connections")


def test_an_unknown_method_lists_the_known_ones(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "call", "infer_steam")
    assert (done.returncode, daemon.calls) == (2, [])
    listed = done.stderr.decode()
    assert all(f"'{name}'" in listed for name in METHODS if not name.startswith("$/"))


def test_help_describes_every_method() -> None:
    shown = carctl("call", "--help").stdout.decode()
    assert all(method.summary in shown for name, method in METHODS.items() if not name.startswith("$/"))


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ("{", "carctl: the params are not JSON: "),
        ("[1]", "carctl: the params have to be a JSON object"),
        ("[" * 100_000, "carctl: the params "),
    ],
)
def test_params_that_are_not_an_object_are_wrong_usage(daemon: FakeDaemon, params: str, line: str) -> None:
    done = carctl("--socket", daemon.path, "call", "tokenize", "-", input=params.encode())
    assert (done.returncode, done.stdout) == (2, b"")
    assert {call.method for call in daemon.calls} == {"inference/capacity"}
    assert done.stderr.decode().startswith(line)


def test_without_a_daemon_the_exit_code_is_that_of_the_other_commands(path: Path) -> None:
    done = carctl("--socket", path, "call", "models/list")
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.startswith(b"carctl: no daemon answers on ")


def test_a_daemon_that_goes_away_before_the_response_is_reported(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    with carctl_on_pipe("--socket", daemon.path, "call", "infer", '{"prompt":"Hi"}') as process:
        daemon.wait_for("infer")
        daemon.drop()
        _, errors = process.communicate()
    assert (process.returncode, errors) == (69, b"carctl: the connection to the daemon was lost\n")


def test_ctrl_c_ends_the_connection_and_with_it_the_request(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    with carctl_on_pipe("--socket", daemon.path, "call", "infer", '{"prompt":"Hi"}') as process:
        daemon.wait_for("infer")
        interrupt(process)
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, b"", b"")


def test_a_daemon_that_sends_nonsense_is_one_line(daemon: FakeDaemon) -> None:
    daemon.raw_answer = b"nonsense\n"
    done = carctl("--socket", daemon.path, "call", "daemon/status")
    assert done.returncode == 1
    assert done.stderr == b"carctl: the daemon sent a frame that is not a JSON-RPC message\n"
