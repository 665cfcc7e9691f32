"""An engine process whose daemon is gone."""

import socket
import subprocess
import sys

import pytest

from car_daemon.engine.codec import encode_frame
from car_daemon.engine.frames import Heartbeat, Load
from car_daemon.engine.process import DaemonGone, Outbox
from car_daemon.guide import PATH


def test_who_says_something_to_nobody_hears_of_it() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(DaemonGone):
            Outbox(theirs).send(Heartbeat(0, 0.0, {}))


def test_an_engine_whose_daemon_goes_while_it_loads_ends_without_a_word() -> None:
    load = Load(
        path=str(PATH),
        context_tokens=256,
        sequences=1,
        policy="config",
        max_itl_ms=150,
        reserve_bytes=0,
        saved_bytes=0,
        step_target_ms=50,
        curves=None,
        threads=1,
        gpu_layers=0,
    )
    ours, theirs = socket.socketpair()
    with theirs:
        engine = subprocess.Popen(
            [sys.executable, "-m", "car_daemon.engine", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
        )
    with ours, engine:
        ours.sendall(encode_frame(load))
        # Its first word comes from the midst of the load.
        assert ours.recv(1)
        ours.close()
        _, said = engine.communicate(timeout=30)
    assert (engine.returncode, said) == (0, b"")
