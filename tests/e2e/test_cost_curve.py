"""The cost curve on disk: measured once, and again where steps show that it was taken on a busy machine."""

import time
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.support import PATIENCE_S, Daemon, endless, running

Curves = dict[str, Any]


def curve_files(cache: Path) -> list[Path]:
    return list((cache / "car" / "curves").iterdir())


def slowed_down(file: Path) -> bytes:
    """Write a curve that is twenty times too slow, as if measured on cores of its own; return the file's content."""
    ((key, curve),) = msgspec.json.decode(file.read_bytes(), type=Curves).items()
    slow: dict[str, object] = {"others": 0.0}
    for kind in ("decode", "prefill"):
        first, seconds = min((int(size), seconds) for size, seconds in curve[kind].items())
        slow[kind] = {size: 20 * seconds * (int(size) / first) ** 0.5 for size in curve[kind]}
    file.write_bytes(msgspec.json.encode({key: slow}))
    return file.read_bytes()


def wait_for_log(daemon: Daemon, event: str) -> None:
    """Return once an event was logged; requests keep the engine at work meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    with daemon.connect() as client:
        while event not in daemon.log.read_text():
            assert time.monotonic() < deadline, daemon.log.read_text()
            client.stream(endless(max_tokens=200))


def test_a_curve_that_was_taken_on_a_busy_machine_is_taken_anew_at_the_next_start(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with running(tmp_path, XDG_CACHE_HOME=str(cache)) as daemon:
        daemon.ready()
    (file,) = curve_files(cache)
    slow = slowed_down(file)
    with running(tmp_path, XDG_CACHE_HOME=str(cache)) as daemon:
        wait_for_log(daemon, "curve.outdated")
        assert file.read_bytes() == b"{}"
    with running(tmp_path, XDG_CACHE_HOME=str(cache)) as daemon:
        daemon.ready()
    assert file.read_bytes() != slow
