"""A daemon beside programs that never rest."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.support import PATIENCE_S, running

pytestmark = pytest.mark.slow


def test_the_engine_is_notified_of_cores_that_other_programs_use_and_serves_on(tmp_path: Path) -> None:
    with running(tmp_path, "--log-level", "debug") as daemon:
        daemon.ready()
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        try:
            deadline = time.monotonic() + PATIENCE_S
            with daemon.connect() as client:
                while "cores.taken" not in daemon.log.read_text():
                    assert time.monotonic() < deadline
                    assert client.result("infer", {"prompt": "Hi", "max_tokens": 4})["text"]
        finally:
            for process in busy:
                process.kill()
                process.wait()
