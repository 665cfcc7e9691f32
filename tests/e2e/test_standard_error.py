"""Standard error: a log that is not read blocks nothing; stacks are dumped there on SIGUSR1."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import BIN, PATIENCE_S, RawClient, environment_of


def reloaded(process: subprocess.Popen[bytes], client: RawClient, times: int) -> None:
    """Reload the configuration, which logs a line each time."""
    for _ in range(times):
        assert client.result("daemon/reload") == {}
    assert process.poll() is None


@pytest.mark.parametrize("reader", ["hangs", "left"])
def test_a_log_that_is_not_read_blocks_nothing(folder: Path, reader: str) -> None:
    reading, writing = os.pipe()
    path = folder / "card.sock"
    process = subprocess.Popen(
        [BIN / "card", "--socket", path, "--capacity", "1"], stderr=writing, env=environment_of(folder)
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as log, process, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(process.kill)
        assert b"daemon.started" in log.readline()
        if reader == "left":
            log.close()
        with contextlib.closing(RawClient(path)) as client:
            # Several times the bytes that a pipe holds.
            reloaded(process, client, 3000)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
            engine = psutil.Process(client.result("daemon/status")["models"][0]["engines"][0]["pid"])
            # A crash is written by the engine itself, which must not block either.
            engine.send_signal(signal.SIGSEGV)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_sigusr1_dumps_the_stacks_of_daemon_and_engine_and_both_serve_on(folder: Path) -> None:
    path = folder / "card.sock"
    process = subprocess.Popen(
        [BIN / "card", "--socket", path, "--capacity", "1"], stderr=subprocess.PIPE, env=environment_of(folder)
    )
    with process, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(process.kill)
        assert process.stderr is not None
        assert b"daemon.started" in process.stderr.readline()
        with contextlib.closing(RawClient(path)) as client:
            client.result("infer", {"prompt": "Hi", "max_tokens": 1})
            pid = client.result("daemon/status")["models"][0]["engines"][0]["pid"]
            for number, file in ((process.pid, "car_daemon/command.py"), (pid, "car_engine/process.py")):
                os.kill(number, signal.SIGUSR1)
                named = "" if number == process.pid else f"engine {pid}: "
                line = re.compile(rf'{named}  File ".*/{file}", line \d+ in \w+\n'.encode())
                assert any(line.fullmatch(each) for each in process.stderr)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
            assert client.result("daemon/status")["models"][0]["engines"][0]["pid"] == pid


def connected(path: Path, process: "subprocess.Popen[bytes]") -> RawClient:
    """Return a connection, as soon as the daemon listens."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return RawClient(path)
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)  # nothing announces a socket that is not there yet


def descriptors(pid: int) -> dict[str, str]:
    """Return what each descriptor of a process is open on."""
    has = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            has[name] = os.readlink(f"/proc/{pid}/fd/{name}")
    return has


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into a process that hides its memory")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has descriptors of other processes in /proc")
@pytest.mark.parametrize("output", ["a terminal", "a file"])
def test_an_engine_has_neither_the_terminal_nor_the_log_of_its_daemon(folder: Path, output: str) -> None:
    path = folder / "card.sock"
    with contextlib.ExitStack() as at_the_end:
        if output == "a terminal":
            ours, theirs = os.openpty()
            at_the_end.callback(os.close, ours)
        else:
            theirs = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
        command = [str(BIN / "card"), "--socket", str(path), "--capacity", "1"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment_of(folder))
        at_the_end.callback(process.wait)
        at_the_end.callback(process.kill)
        os.close(theirs)
        with contextlib.closing(connected(path, process)) as client:
            client.result("infer", {"prompt": "Hi", "max_tokens": 1})
            pid = client.result("daemon/status")["models"][0]["engines"][0]["pid"]
        has = descriptors(pid)
        assert (has.pop("0"), has.pop("1")) == ("/dev/null", "/dev/null")
        # A pipe of its own, which the daemon alone reads.
        assert has["2"].startswith("pipe:")
        pipes = [*descriptors(process.pid).values()]
        assert pipes.count(has["2"]) == 1
        assert not [name for name in has.values() if "pts" in name or "log" in name]
