"""Standard error: a log that is not read blocks nothing; stacks are dumped there on SIGUSR1."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import BIN, PATIENCE_S, RawClient


def reloaded(process: subprocess.Popen[bytes], client: RawClient, times: int) -> None:
    """Reload the configuration, which logs a line each time."""
    for _ in range(times):
        assert client.result("daemon/reload") == {}
    assert process.poll() is None


@pytest.mark.parametrize("reader", ["hangs", "left"])
def test_a_log_that_is_not_read_blocks_nothing(folder: Path, reader: str) -> None:
    reading, writing = os.pipe()
    path = folder / "card.sock"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    process = subprocess.Popen([BIN / "card", "--socket", path, "--capacity", "1"], stderr=writing, env=environment)
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
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    process = subprocess.Popen(
        [BIN / "card", "--socket", path, "--capacity", "1"], stderr=subprocess.PIPE, env=environment
    )
    with process, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(process.kill)
        assert process.stderr is not None
        assert b"daemon.started" in process.stderr.readline()
        with contextlib.closing(RawClient(path)) as client:
            client.result("infer", {"prompt": "Hi", "max_tokens": 1})
            pid = client.result("daemon/status")["models"][0]["engines"][0]["pid"]
            for number, file in ((process.pid, "command.py"), (pid, "engine/process.py")):
                os.kill(number, signal.SIGUSR1)
                line = re.compile(rf'  File ".*/car_daemon/{file}", line \d+ in \w+\n'.encode())
                assert any(line.fullmatch(each) for each in process.stderr)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
            assert client.result("daemon/status")["models"][0]["engines"][0]["pid"] == pid
