"""What others do to the processor while something is measured."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.bystanders import Bystanders


@pytest.fixture
def busy_neighbour() -> Iterator[None]:
    """Another process that never rests."""
    neighbour = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert neighbour.stdout
    neighbour.stdout.readline()
    yield
    neighbour.kill()
    neighbour.wait()
    neighbour.stdout.close()


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
