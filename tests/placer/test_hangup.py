"""A placer in a call of Ray that never returns ends with its daemon."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In place of a daemon: starts a placer, sends its first frame, and closes the link at a line of its own input.
DAEMON = """
import socket, subprocess, sys
from car_base.ipc.codec import encode_frame
from car_base.ipc.placing import Join

ours, theirs = socket.socketpair()
kept = (theirs.fileno(), int(sys.argv[1]))
placer = subprocess.Popen([sys.executable, "-m", "car_placer", str(kept[0])], pass_fds=kept)
theirs.close()
ours.sendall(encode_frame(Join(address="10.0.0.1:6379", daemon="d", version="1", schema="s")))
sys.stdin.readline()
ours.close()
placer.wait()
"""
# In place of Ray: reports that it was imported, and blocks this thread, or with the interpreter's lock all of them.
RAY = """
import ctypes, os, threading

os.write(int(os.environ["REPORT"]), b"imported")
{block}
"""
THREAD = "threading.Event().wait()"
ALL_THREADS = "ctypes.PyDLL(None).pause()"
PATIENCE_S = 60


def read(pipe: int) -> bytes:
    """Return what was written into a pipe next; empty once no process has its other end."""
    found, _, _ = select.select([pipe], [], [], PATIENCE_S)
    assert found, "the placer lives on"
    return os.read(pipe, 100)


@pytest.mark.parametrize(
    ("block", "daemon_dies"),
    [
        (THREAD, True),
        (THREAD, False),
        pytest.param(ALL_THREADS, True, marks=pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")),
    ],
    ids=["its daemon is killed", "its daemon closes the link", "its daemon is killed while all threads stand still"],
)
def test_a_placer_that_a_call_of_ray_blocks_ends_with_its_daemon(block: str, daemon_dies: bool, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(RAY.format(block=block))
    report, theirs = os.pipe()
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(theirs)],
        stdin=subprocess.PIPE,
        pass_fds=(theirs,),
        env=os.environ | {"PYTHONPATH": paths, "REPORT": str(theirs)},
    )
    os.close(theirs)
    try:
        assert read(report) == b"imported"
        if daemon_dies:
            daemon.send_signal(signal.SIGKILL)
        else:
            assert daemon.stdin is not None
            daemon.stdin.close()
        assert read(report) == b""
    finally:
        daemon.kill()
        daemon.communicate()
        os.close(report)
