"""`carctl infer`: on a terminal, into a pipe, interrupted, and left by its reader."""

from pathlib import Path
from typing import Any

import pytest

from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl, carctl_on_pipe, carctl_on_terminal, interrupt
from tests.client.fake_daemon import FakeDaemon


def test_a_pipe_gets_the_plain_text_and_one_line_end(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "infer", "Hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello\n", b"")


@pytest.mark.parametrize(
    "pieces",
    [["Hel", "lo\n"], ["Hello", "\n", "\n"], ["Hello\n\n\n"], ["Hello"], ["", "Hello", ""]],
)
def test_there_is_one_line_end_whatever_the_model_wrote(daemon: FakeDaemon, pieces: list[str | dict[str, Any]]) -> None:
    daemon.pieces = pieces
    assert carctl("--socket", daemon.path, "infer", "Hi").stdout == b"Hello\n"


def test_line_ends_inside_the_answer_stay(daemon: FakeDaemon) -> None:
    daemon.pieces = ["a\n", "\n", "b", "\n\x1b[31mc\td"]
    assert carctl("--socket", daemon.path, "infer", "Hi").stdout == b"a\n\nb\n\x1b[31mc\td\n"


def test_an_empty_answer_is_an_empty_line(daemon: FakeDaemon) -> None:
    daemon.pieces = []
    assert carctl("--socket", daemon.path, "infer", "Hi").stdout == b"\n"


def test_a_terminal_is_not_driven_by_the_answer(daemon: FakeDaemon) -> None:
    daemon.pieces = ["\x1b]0;title\x07", "a\tb\nc\rd\x9b31m"]
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi") as terminal:
        assert terminal.end().decode() == "␛]0;title␇a\tb\nc␍d\ufffd31m\n"


def test_a_model_that_can_chat_gets_a_conversation(daemon: FakeDaemon) -> None:
    carctl("--socket", daemon.path, "infer", "Hi")
    assert daemon.params("infer_stream") == {"messages": [{"role": "user", "content": "Hi"}]}


def test_a_model_that_cannot_chat_gets_the_prompt(daemon: FakeDaemon) -> None:
    daemon.chats = False
    done = carctl("--socket", daemon.path, "infer", "Hi", "--model", "other")
    assert (done.returncode, done.stdout) == (0, b"Hello\n")
    assert daemon.params("infer_stream") == {"prompt": "Hi", "model": "other"}


def test_raw_sends_the_bare_prompt_and_every_option_arrives(daemon: FakeDaemon) -> None:
    options = ["--max-tokens", "5", "--temperature", "0", "--seed", "7", "--stop", "a", "--stop", "b"]
    options += ["--priority", "throughput", "--timeout-ms", "1000"]
    done = carctl("--socket", daemon.path, "infer", "Hi", "--raw", *options)
    assert done.returncode == 0
    assert daemon.params("infer_stream") == {
        "prompt": "Hi",
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 7,
        "stop": ["a", "b"],
        "priority": "throughput",
        "timeout_ms": 1000,
    }


def test_a_dash_reads_standard_input_without_its_last_line_end(daemon: FakeDaemon) -> None:
    carctl("--socket", daemon.path, "infer", "-", "--raw", input="é\nb\n\n".encode())
    assert daemon.params("infer_stream") == {"prompt": "é\nb\n"}


@pytest.mark.parametrize("text", [b"\xff", b"a\xe9"])
def test_text_that_is_not_utf8_is_wrong_usage(daemon: FakeDaemon, text: bytes) -> None:
    done = carctl("--socket", daemon.path, "infer", "-", input=text)
    assert (done.returncode, done.stderr) == (2, b"carctl: the text is not UTF-8\n")
    done = carctl("--socket", daemon.path, "infer", text.decode(errors="surrogateescape"))
    assert (done.returncode, done.stderr) == (2, b"carctl: the text is not UTF-8\n")


def test_a_refused_request_exits_1_and_names_the_member(daemon: FakeDaemon) -> None:
    daemon.answers["infer_stream"] = RpcError("invalid_params", param="temperature")
    done = carctl("--socket", daemon.path, "infer", "Hi", "--temperature", "9")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"carctl: invalid_params: temperature: ")
    assert done.stderr.count(b"\n") == 1


def test_an_error_in_the_middle_begins_on_its_own_line(daemon: FakeDaemon) -> None:
    daemon.claimed = 5
    done = carctl("--socket", daemon.path, "infer", "Hi")
    assert (done.returncode, done.stdout) == (1, b"Hello\n")


def test_text_shows_as_it_arrives_and_ctrl_c_cancels_at_the_daemon(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi") as terminal:
        terminal.read_until(b"Hel")
        interrupt(terminal.process)
        assert terminal.end() == b"Hel\n"
        assert terminal.process.returncode == 130
    daemon.wait_for("$/cancelRequest")


def test_ctrl_c_before_the_first_text_leaves_the_terminal_clean_too(daemon: FakeDaemon) -> None:
    daemon.silent_after = 0
    with carctl_on_terminal("--socket", daemon.path, "infer", "Hi") as terminal:
        daemon.wait_for("infer_stream")
        interrupt(terminal.process)
        assert terminal.end() == b"\n"
        assert terminal.process.returncode == 130
    daemon.wait_for("$/cancelRequest")


def test_a_reader_that_leaves_ends_it_quietly_and_frees_the_daemon(daemon: FakeDaemon) -> None:
    daemon.pieces = ["line\n" * 2000] * 100
    with carctl_on_pipe("--socket", daemon.path, "infer", "Hi") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    daemon.wait_until_gone()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this platform has no full device")
@pytest.mark.parametrize("command", [["infer", "Hi"], ["capacity"]])
def test_a_full_device_is_one_line(daemon: FakeDaemon, command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = carctl("--socket", daemon.path, *command, stdout=full)
    assert (done.returncode, done.stderr) == (1, b"carctl: no space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_closed_standard_streams_are_one_line(daemon: FakeDaemon, closed: str) -> None:
    done = carctl("--socket", daemon.path, "infer", "Hi", shell=closed)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
