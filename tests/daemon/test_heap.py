"""Memory that was used once does not stay with the process."""

import subprocess
import sys

import pytest

MIB = 1024 * 1024
# Blocks below the size from which glibc maps each for itself whatever was set: first all of them, then every second.
SCRIPT = """
import psutil
from car_daemon.heap import return_large_blocks
assert return_large_blocks()
own = psutil.Process()
for _ in range(2):
    blocks = [bytearray(8 * 1024 * 1024) for _ in range(16)]
    del blocks[::2]
    kept = own.memory_info().rss
    del blocks
print(kept, own.memory_info().rss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
def test_large_blocks_go_back_to_the_system_one_by_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, after = map(int, done.stdout.split())
    assert kept - after > 60 * MIB
    assert kept < 100 * MIB
    assert after < 60 * MIB
