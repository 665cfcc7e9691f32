"""Other programs on the processor during a measurement."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.comparison import Bystanders, own_seconds

NEVER_RESTS = "print(flush=True)\nwhile True: pass"
# Its parent ends at once, so that it is no descendant of ours.
STRANGER = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {NEVER_RESTS!r}]).pid, flush=True)
"""


WORK_S = 0.2
# The system counts the time of others in such pieces.
CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WORKS = f"""
import sys, time
while time.process_time() < {WORK_S}: pass
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def busy_neighbour() -> Iterator[None]:
    """Another program that never rests."""
    with subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.wait()
        parent.stdout.readline()
        yield
        os.kill(pid, signal.SIGKILL)


def work() -> str:
    subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)
    return "done"


def test_what_is_measured_is_returned_with_the_share_of_others() -> None:
    found, share = Bystanders(quiet=1.0, patience_s=0.0).without(work)
    assert found == "done"
    assert 0 <= share <= 1


@pytest.mark.usefixtures("busy_neighbour")
def test_a_busy_neighbour_is_seen_and_without_patience_measured_beside() -> None:
    runs: list[str] = []
    _, share = Bystanders(quiet=0.0, patience_s=0.0).without(lambda: runs.append(work()))
    assert share > 0
    assert runs == ["done"]


def test_what_a_child_takes_is_ours_while_it_runs_and_when_it_has_ended() -> None:
    before = own_seconds()
    with subprocess.Popen([sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        running = own_seconds() - before
        child.communicate()
    assert running >= WORK_S - CLOCK_TICK_S
    assert own_seconds() - before >= running - CLOCK_TICK_S
