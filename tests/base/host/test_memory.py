"""Memory of the machine and of its control groups, read from files like the kernel's."""

from pathlib import Path

import psutil
import pytest

from car_base.host.memory import read_memory

GIB = 2**30


def write(file: Path, text: str | int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_without_a_control_group_it_is_the_machines_memory(tmp_path: Path) -> None:
    reading = read_memory(tmp_path)
    assert reading.total == psutil.virtual_memory().total
    assert 0 < reading.available <= reading.total
    assert (reading.some_percent, reading.full_percent) == (0, 0)


def test_detected_memory_is_more_than_nothing() -> None:
    assert read_memory().total > 0


def test_where_memory_cannot_be_read_16_gib_are_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "virtual_memory", unreadable)
    assert read_memory(tmp_path).total == 16 * GIB


def test_a_container_of_4_gib_has_4_gib(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    write(tmp_path / "proc/self/cgroup", "0::/box/inner")
    write(group / "memory.max", 4 * GIB)
    write(group / "memory.current", 3 * GIB)
    write(group / "memory.stat", f"anon {2 * GIB}\ninactive_file {GIB}")
    write(group / "inner/memory.max", "max")
    write(group / "inner/memory.current", GIB)
    reading = read_memory(tmp_path)
    assert (reading.total, reading.available) == (4 * GIB, 2 * GIB)


def test_the_innermost_limit_counts_where_it_is_the_smallest(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self/cgroup", "0::/box")
    write(group / "memory.max", 8 * GIB)
    write(group / "memory.current", GIB)
    write(group / "box/memory.max", GIB)
    write(group / "box/memory.current", GIB)
    reading = read_memory(tmp_path)
    assert (reading.total, reading.available) == (GIB, 0)


def test_the_older_control_groups_count_too(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/memory/box"
    write(tmp_path / "proc/self/cgroup", "4:memory:/box\n2:cpu:/")
    write(group / "memory.limit_in_bytes", 2 * GIB)
    write(group / "memory.usage_in_bytes", GIB)
    assert read_memory(tmp_path).total == 2 * GIB


def test_an_older_group_without_a_limit_does_not_limit(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/memory"
    write(tmp_path / "proc/self/cgroup", "4:memory:/")
    write(group / "memory.limit_in_bytes", 2**63 - 4096)
    write(group / "memory.usage_in_bytes", GIB)
    assert read_memory(tmp_path).total == psutil.virtual_memory().total


def test_stalls_are_read_where_the_kernel_reports_them(tmp_path: Path) -> None:
    lines = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=1"
    write(tmp_path / "proc/pressure/memory", lines)
    reading = read_memory(tmp_path)
    assert (reading.some_percent, reading.full_percent) == (12.5, 3.25)


def test_a_stall_file_of_another_form_reads_as_zero(tmp_path: Path) -> None:
    write(tmp_path / "proc/pressure/memory", "nothing of the kind")
    assert read_memory(tmp_path).some_percent == 0
