"""A daemon whose log nobody reads any more serves on, and ends when it is told to."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import BIN, PATIENCE_S, RawClient


def reloaded(process: subprocess.Popen[bytes], client: RawClient, times: int) -> None:
    """Have lines logged, each of which somebody waits for."""
    for _ in range(times):
        assert client.result("daemon/reload") == {}
    assert process.poll() is None


@pytest.mark.parametrize("reader", ["hangs", "left"])
def test_nobody_waits_for_who_does_not_read_the_log(folder: Path, reader: str) -> None:
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
            # Several times what pipes hold.
            reloaded(process, client, 3000)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
            engine = psutil.Process(client.result("daemon/status")["models"][0]["engines"][0]["pid"])
            # What ends an engine is written by itself, and must not block it either.
            engine.send_signal(signal.SIGSEGV)
            assert client.result("infer", {"prompt": "Hi", "max_tokens": 1})["usage"]["completion_tokens"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
