"""CPU time, as the machine reports it."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from car_base.host.cores import read_cores, usable_cpus


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


def test_there_is_a_cpu_to_use() -> None:
    assert 1 <= len(usable_cpus()) <= (os.cpu_count() or 1)


def test_a_process_that_may_not_be_inspected_is_an_error_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> psutil.Process:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "Process", refused)
    with pytest.raises(PermissionError):
        read_cores([os.getpid()])
