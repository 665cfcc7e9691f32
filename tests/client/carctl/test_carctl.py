"""`carctl`: exit codes, one-line errors, and what `capacity` shows."""

import socket
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from car_client.carctl.failure import explain
from car_client.carctl.main import COMMANDS, run
from car_client.carctl.service import up
from car_client.errors import from_object
from car_protocol import __version__
from car_protocol.errors import REASONS, RpcError
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon, once_asked
from tests.client.samples import model

ASKING = [["status"], ["capacity"], ["infer", "Hi"], ["embed", "Hi"], ["models", "list"], ["metrics"]]


def one_line(text: bytes) -> str:
    """Return the only line of an output."""
    (line,) = text.decode().splitlines()
    return line


def test_capacity_shows_every_figure(daemon: FakeDaemon) -> None:
    shown = carctl("--socket", daemon.path, "capacity").stdout.decode()
    assert {line[:11].rstrip(): line[11:] for line in shown.splitlines()} == {
        "declared": "4 (measured)",
        "effective": "4",
        "in use": "1",
        "available": "3",
        "parked": "0",
        "queued": "2 latency-critical, 0 throughput of 64",
        "pressure": "none",
        "state": "ready",
        "model": "guide, 2048 tokens per sequence",
        "memory": "8192 MiB free, 32 MiB a sequence",
        "measured": "1: 175, 8: 320 tokens/s",
        "machine": "limit none, 1 in use",
    }


def test_capacity_as_json_is_the_result_as_it_came(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "capacity", "--json")
    assert msgspec.json.decode(done.stdout)["declared"] == 4


@pytest.mark.parametrize("command", ASKING)
def test_without_a_daemon_one_line_says_where_it_was_looked_for(path: Path, command: list[str]) -> None:
    done = carctl("--socket", path, *command)
    assert (done.returncode, done.stdout) == (69, b"")
    assert one_line(done.stderr) == (
        f"carctl: no daemon answers on {path} (no such file or directory); start it with: carctl --socket {path} up"
    )


def test_the_default_socket_and_the_system_service_are_both_tried(path: Path) -> None:
    done = carctl("status", env={"XDG_RUNTIME_DIR": str(path.parent)})
    assert done.returncode == 69
    assert f"{path.parent}/car/card.sock (" in one_line(done.stderr)
    assert "/run/car/card.sock (" in one_line(done.stderr)


def test_the_environment_names_the_socket(daemon: FakeDaemon) -> None:
    assert carctl("capacity", env={"CAR_SOCKET": str(daemon.path)}).returncode == 0


def test_system_means_the_service_alone(daemon: FakeDaemon) -> None:
    done = carctl("--system", "status", env={"CAR_SOCKET": str(daemon.path)})
    assert done.returncode == 69
    assert str(daemon.path) not in one_line(done.stderr)


def test_a_file_that_is_no_socket_is_unreachable(path: Path) -> None:
    path.write_text("no socket")
    done = carctl("--socket", path, "status")
    assert done.returncode == 69
    assert "(not a socket)" in one_line(done.stderr)


def test_a_path_that_no_platform_takes_is_wrong_usage(path: Path) -> None:
    done = carctl("--socket", path / ("a" * 200), "status")
    assert done.returncode == 2
    assert "the socket path is longer than" in one_line(done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["--socket", "a", "--system", "status"],
        ["infer"],
        ["infer", "Hi", "--max-tokens", "many"],
        ["infer", "Hi", "--priority", "urgent"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    done = carctl(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert one_line(done.stderr).startswith("carctl")
    assert one_line(done.stderr).endswith(" --help` shows the usage")


def test_no_command_is_answered_with_the_first_one() -> None:
    done = carctl()
    assert (done.returncode, b"carctl up" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name: str) -> None:
    done = carctl(name, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: carctl " + name.encode())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_run(name: str) -> None:
    command = COMMANDS[name]
    module = import_module(f"car_client.carctl.{command.module}")
    assert callable(getattr(module, command.run))


def test_a_socket_may_be_called_like_a_command(daemon: FakeDaemon) -> None:
    named = daemon.path.with_name("infer")
    named.symlink_to(daemon.path)
    done = carctl("--socket", "infer", "capacity", "--json", cwd=daemon.path.parent)
    named.unlink()
    assert done.returncode == 0


def test_the_version_is_the_distribution_s() -> None:
    done = carctl("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"carctl {__version__}\n")


@pytest.mark.parametrize(
    ("reason", "code", "line"),
    [
        ("not_permitted", 1, ""),
        ("internal_error", 75, "the daemon failed; its log says why"),
        ("overloaded", 75, "the daemon has no room for this request now"),
    ],
)
def test_an_error_of_the_daemon_exits_1_and_75_if_a_later_attempt_may_work(
    daemon: FakeDaemon, reason: str, code: int, line: str
) -> None:
    daemon.answers["daemon/status"] = RpcError(reason)
    done = carctl("--socket", daemon.path, "status")
    assert (done.returncode, done.stdout) == (code, b"")
    assert one_line(done.stderr).startswith(f"carctl: {reason}: {line}")


def test_a_refused_connection_exits_1_and_says_which_limit(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    daemon.silent.add("inference/capacity")
    done = carctl("--socket", daemon.path, "capacity")
    assert (done.returncode, done.stdout) == (1, b"")
    assert one_line(done.stderr).endswith("; limit max_connections, value 1024")


def test_a_daemon_that_talks_nonsense_exits_1_with_one_line(daemon: FakeDaemon) -> None:
    daemon.raw_answer = b"nonsense\n"
    done = carctl("--socket", daemon.path, "status")
    assert (done.returncode, one_line(done.stderr)[:8]) == (1, "carctl: ")


def test_a_daemon_that_goes_away_exits_69_with_one_line(daemon: FakeDaemon) -> None:
    daemon.silent.add("daemon/status")
    with once_asked(daemon, "daemon/status", daemon.drop):
        done = carctl("--socket", daemon.path, "status")
    assert (done.returncode, one_line(done.stderr)) == (69, "carctl: the connection to the daemon was lost")


@pytest.mark.parametrize("reason", REASONS)
def test_every_error_has_one_line_that_names_its_reason(reason: str) -> None:
    line = explain(from_object(RpcError(reason, param="a\nb").as_object()))
    assert line.startswith(f"{reason}: ")
    assert "\n" not in line


def test_a_busy_daemon_says_when_to_come_back() -> None:
    line = explain(from_object(RpcError("overloaded", retry_after_ms=40).as_object()))
    assert line.endswith("; try again in 40 ms")


def test_figures_that_do_not_fit_are_shown() -> None:
    error = RpcError("context_exceeded", prompt_tokens=9000, max_tokens=None, context_tokens=4096)
    line = explain(from_object(error.as_object()))
    assert "; prompt_tokens 9000, context_tokens 4096; shorten it" in line
    error.data["param"] = "questions[1]"
    assert "; param questions[1], prompt_tokens 9000, " in explain(from_object(error.as_object()))
    error.data["why"] = "set sequences = 1"
    assert "context_tokens 4096, why set sequences = 1; " in explain(from_object(error.as_object()))


@pytest.mark.parametrize(
    ("command", "method", "wanted"),
    [
        (["drain"], "daemon/drain", "Drained"),
        (["models", "unload", "guide"], "models/unload", "Model"),
        (["infer", "Hi", "--json"], "infer", "Answer"),
    ],
)
def test_a_result_of_another_shape_exits_1_with_one_line(
    daemon: FakeDaemon, command: list[str], method: str, wanted: str
) -> None:
    daemon.answers[method] = {"other": 1}
    done = carctl("--socket", daemon.path, *command)
    assert (done.returncode, one_line(done.stderr)) == (1, f"carctl: the daemon sent JSON that is not a valid {wanted}")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["bench", "--at-once", "1", "--requests", "1"], b"the load generator took"),
        (["models", "load", "guide"], b"guide: ready\n"),
    ],
)
def test_without_standard_error_what_draws_there_works(daemon: FakeDaemon, command: list[str], shown: bytes) -> None:
    daemon.answers["models/load"] = model()
    done = carctl("--socket", daemon.path, *command, shell="2>&-")
    assert done.returncode == 0
    assert shown in done.stdout


def test_without_standard_error_nothing_of_it_comes_to_standard_output(daemon: FakeDaemon, tmp_path: Path) -> None:
    assert carctl("--socket", daemon.path, "infer", "Hi", "--stats", shell="2>&-").stdout == b"Hello\n"
    done = carctl("--socket", tmp_path / "none", "infer", "Hi", shell="2>&-")
    assert (done.returncode, done.stdout) == (69, b"")


def test_metrics_have_no_commands_for_a_terminal_that_a_client_chose(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/metrics"] = {"text": 'card_usage{app="\x1b]0;owned\x07"} 1\ncard_up 1\n'}
    done = carctl("--socket", daemon.path, "metrics")
    assert done.stdout.decode() == 'card_usage{app="␛]0;owned␇"} 1\ncard_up 1\n'


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["capacity"],
        ["reload"],
        ["up"],
        ["down", "--timeout-ms", "9"],
        ["infer", "Hi"],
        ["decide", "Hi", "--predicate", "it greets"],
        ["embed", "Hi"],
        ["tokenize", "Hi"],
        ["call", "inference/capacity"],
    ],
)
def test_a_daemon_that_hangs_is_said_to_hang(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "ANSWER_S", 0.1)
    monkeypatch.setitem(COMMANDS, words[0], COMMANDS[words[0]]._replace(timeout_s=0.1, hello_s=0.1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert run(["--socket", str(tmp_path / "s"), *words]) == 69
    assert "it hangs or was stopped; `carctl doctor`" in capsys.readouterr().err
