"""Limits of a process: connections within its descriptors, and free memory that goes back to the system."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from car_base.host.memory import within_descriptors
from car_protocol.limits import Limits


@pytest.fixture(autouse=True)
def limit() -> Iterator[tuple[int, int]]:
    """The limit as it was, which comes back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_what_is_needed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    assert within_descriptors(Limits(max_connections=200)).max_connections == 200
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200 + 64 + len(os.listdir("/dev/fd")) - 1, hard)


def test_a_limit_that_is_high_enough_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert within_descriptors(Limits(max_connections=1)).max_connections == 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from car_base.host.memory import within_descriptors
from car_protocol.limits import Limits
print(within_descriptors(Limits()).max_connections)
"""


@pytest.mark.parametrize(("hard", "most"), [(400, 400 - 64 - 3), (120, 120 - 30 - 3), (64, 64 - 16 - 3), (12, 1)])
def test_a_hard_limit_leaves_some_beside_the_connections_and_one_connection_at_least(hard: int, most: int) -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(hard)], capture_output=True, text=True, check=True)
    assert int(ended.stdout) == most


MIB = 1024 * 1024
# Blocks below the size from which glibc maps each for itself whatever was set: first all of them, then every second.
HEAP_SCRIPT = """
import sys
import psutil
from car_protocol.allocator import return_blocks
size = int(sys.argv[1])
assert return_blocks(size)
own = psutil.Process()
for _ in range(2):
    blocks = [bytearray(size) for _ in range(128 * 1024 * 1024 // size)]
    del blocks[::2]
    kept = own.memory_info().rss
    del blocks
print(kept, own.memory_info().rss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
@pytest.mark.parametrize("size", [128 * 1024, 8 * MIB])
def test_blocks_go_back_to_the_system_one_by_one(size: int) -> None:
    done = subprocess.run([sys.executable, "-c", HEAP_SCRIPT, str(size)], capture_output=True, text=True, check=True)
    kept, after = map(int, done.stdout.split())
    assert kept - after > 60 * MIB
    assert kept < 100 * MIB
    assert after < 60 * MIB
