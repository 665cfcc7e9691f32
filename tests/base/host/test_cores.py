"""CPU time, as the machine reports it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from car_base.host.cores import read_cores, usable_cpus, waits_for_cores
from tests.pace import HANG_S, until


def test_the_time_of_a_process_counts_in_all_and_in_its_own() -> None:
    before = read_cores([os.getpid()])
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    after = read_cores([os.getpid()])
    own = after.own[os.getpid()] - before.own[os.getpid()]
    assert own >= 0.15
    # The kernel counts in ticks of up to 10 ms.
    assert after.all - before.all >= own - 0.05


def test_a_process_that_has_ended_is_left_out() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert read_cores([int(gone.stdout)]).own == {}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system counts no waits")
def test_two_programs_on_one_core_wait_for_it_and_a_program_that_sleeps_waits_for_nothing() -> None:
    with ExitStack() as stack:
        busy, _, asleep = (
            stack.enter_context(program(f"os.sched_setaffinity(0, [{usable_cpus()[0]}]); print(flush=True); {does}"))
            for does in ("exec('while True: pass')", "exec('while True: pass')", "input()")
        )
        until(lambda: psutil.Process(asleep.pid).status() == psutil.STATUS_SLEEPING)  # it says so just before
        before, began = waits_for_cores(asleep.pid), time.monotonic()
        while max(waits_for_cores(busy.pid).values()) < 0.5:
            assert time.monotonic() < began + HANG_S
        after = waits_for_cores(asleep.pid)
    assert set(after) == set(before)
    assert sum(after.values()) - sum(before.values()) < 0.1
    assert waits_for_cores(busy.pid) == {}


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code that prints a line once it is ready."""
    command = [sys.executable, "-c", f"import os; {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_there_is_a_cpu_to_use() -> None:
    assert 1 <= len(usable_cpus()) <= (os.cpu_count() or 1)


def test_a_process_that_may_not_be_inspected_is_an_error_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> psutil.Process:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "Process", refused)
    with pytest.raises(PermissionError):
        read_cores([os.getpid()])
