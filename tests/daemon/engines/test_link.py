"""An engine process is supervised from its first moment, or gone."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from car_base.ipc.codec import encode_frame
from car_base.ipc.frames import Loading
from car_daemon.engines import link
from tests.pace import HANG_S


class Started:
    """The processes that were started; `one` is set with the first."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.one = asyncio.Event()

    @property
    def alive(self) -> list[int]:
        """Return the processes that are still there."""
        assert self.pids
        return [pid for pid in self.pids if psutil.pid_exists(pid)]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Processes that are started in place of engines, and live on until they are killed."""
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    all_of_them = Started()
    spawn = asyncio.create_subprocess_exec

    async def spawn_and_tell(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await spawn(*arguments, **options)
        all_of_them.pids.append(process.pid)
        all_of_them.one.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn_and_tell)
    return all_of_them


async def test_a_process_that_cannot_be_connected_to_is_ended(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_hear: object) -> NoReturn:
        raise OSError("no descriptor")

    monkeypatch.setattr(link, "EngineLink", fail)
    before = os.listdir("/dev/fd")
    with pytest.raises(OSError, match="no descriptor"):
        await link.launch(print, None)
    assert started.alive == []
    assert len(os.listdir("/dev/fd")) <= len(before) + 1, "an event loop may keep a descriptor for its children"


async def test_a_launch_that_is_cancelled_leaves_no_process(started: Started) -> None:
    launching = asyncio.create_task(link.launch(print, None))
    await started.one.wait()
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert started.alive == []


async def test_where_no_process_can_be_started_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError):
        await link.launch(print, None)
    assert os.listdir("/dev/fd") == before


async def test_where_descriptors_are_short_none_is_lost(started: Started) -> None:
    before, (soft, hard) = os.listdir("/dev/fd"), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 6, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            await link.launch(print, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (os.listdir("/dev/fd"), started.pids) == (before, [])


HOSTILE = """#!{python}
import os, sys, time
os.write(int(sys.argv[3]), {data!r})
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xff" * 4, "a frame announces 4,294,967,295 bytes, the limit is 67,108,864"),
        (b"\x05\0\0\0hello", "a frame of the engine cannot be decoded"),
        (encode_frame(Loading(0.5)), "a frame of the engine failed: ValueError at tests.daemon.engines.test_link:"),
    ],
    ids=["too long", "not a frame", "at the wrong time"],
)
async def test_an_engine_that_sends_a_frame_that_is_not_one_is_killed(
    data: bytes, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> NoReturn:
        raise ValueError("no such frame now")

    engine_file = tmp_path / "python"
    engine_file.write_text(HOSTILE.format(python=sys.executable, data=data))
    engine_file.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(engine_file))
    engine = await link.launch(refuse, None)
    status = await asyncio.wait_for(engine.wait(), HANG_S)
    assert status == -signal.SIGKILL
    assert (engine.fault or "").startswith(fault)
