"""The memory limits of an engine: how much they leave, and where there are none."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from car_engine.confinement import Used, limit_memory, limits_of
from tests.engine.real_process import LOAD

GIB = 1 << 30
sizes = st.integers(0, 1 << 45)


@given(data=sizes, mapped=sizes, later=sizes, margin=sizes, threads=st.integers(1, 256))
def test_an_engine_keeps_what_it_has_and_gets_what_ordinary_work_adds_and_the_margin(
    data: int, mapped: int, later: int, margin: int, threads: int
) -> None:
    limits = limits_of(Used(data, data + mapped), later=later, margin=margin, threads=threads)
    assert limits.data == data + later + margin
    assert limits.virtual - (data + mapped) - later - 2 * margin >= 72 * threads << 20


@pytest.mark.parametrize(
    "change", [{"sandbox": "off"}, {"margin_bytes": None}, {"device": "gpu0", "gpu_layers": -1}, {"gpu_layers": 9}]
)
def test_memory_is_not_limited_without_a_sandbox_or_a_margin_nor_with_a_gpu(change: dict[str, object]) -> None:
    load = structs.replace(LOAD, margin_bytes=GIB)
    assert limit_memory(structs.replace(load, **change), later=0, threads=1) is None


LIMITED = """
import sys
from msgspec import structs
from car_engine.confinement import limit_memory
from tests.engine.real_process import LOAD
limits = limit_memory(structs.replace(LOAD, margin_bytes=1 << 28), later=0, threads=1)
kept = bytearray(200 << 20)
try:
    more = bytearray(100 << 20)
except MemoryError:
    print(*limits)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds private memory")
def test_an_allocation_beyond_the_margin_fails_and_one_within_it_succeeds() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=root, capture_output=True, text=True, check=True)
    private, virtual = map(int, done.stdout.split())
    assert 256 << 20 < private < 400 << 20
    assert virtual > private + (256 << 20)
