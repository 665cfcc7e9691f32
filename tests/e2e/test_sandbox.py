"""Daemon and engine give up what they do not need, and both configurations serve."""

import sys
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, configured, greedy, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines daemon and engines"),
]


def facts(pid: int) -> dict[str, str]:
    """Return the facts of a process by their names in /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("sandbox", ["strict", "off"])
def test_daemon_and_engine_serve_with_and_without_a_sandbox(folder: Path, sandbox: str) -> None:
    config = configured(folder, f'[daemon]\nsandbox = "{sandbox}"\n')
    with running(folder, *config, HF_TOKEN="hf_secret") as daemon, daemon.connect() as client:
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        status = client.result("daemon/status")
        engine = status["models"][0]["engines"][0]
        expected = "1" if sandbox == "strict" else "0"
        assert [facts(pid)["NoNewPrivs"] for pid in (status["pid"], engine["pid"])] == [expected] * 2
        assert ("no new privileges" in engine["sandbox"]) == (sandbox == "strict")
        try:
            environment = Path(f"/proc/{engine['pid']}/environ").read_bytes()
        except PermissionError:
            assert sandbox == "strict"
        else:
            assert b"hf_secret" not in environment
