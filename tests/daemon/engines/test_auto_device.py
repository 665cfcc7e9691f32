"""What `auto` is: found once by a process of its own, and the CPU at once where there is no GPU's driver."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from car_base.host.devices import may_have_gpus
from car_base.ipc.frames import DeviceMemory, Devices, FindDevices, FromEngine
from car_daemon.engines.auto_device import AutoDevice
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.link import Engine, launch
from tests.daemon.captured_log import capture_logs

GPU = DeviceMemory("CUDA0", 7 << 30, 8 << 30)


class Finder:
    """A launcher of processes that find GPUs: `found` is their reply, None for a process that ends without it."""

    host: str | None = None
    cut = False

    def __init__(self, found: list[DeviceMemory] | None, *, silent: bool = False) -> None:
        self.found = found
        self.silent = silent
        self.launched = 0
        self.placed: list[str] = []
        self.ended = asyncio.Event()
        self._receive: Callable[[FromEngine], None] = lambda _: None

    pid = 1
    fault: str | None = None

    async def launch(self, receive: Callable[[FromEngine], None], _: CellKeeper | None) -> Engine:
        self.launched += 1
        self._receive = receive
        self.ended.clear()
        return self

    def send(self, message: Struct) -> None:
        assert isinstance(message, FindDevices)
        if self.found is not None:
            self._receive(Devices(self.found))
        elif not self.silent:
            self.ended.set()

    def waits(self) -> dict[str, float]:
        return {}

    async def wait(self) -> int:
        await self.ended.wait()
        return -11

    def kill(self) -> None:
        self.ended.set()

    async def stop(self) -> None:
        self.kill()

    def auto(self, *, may_have_gpus: bool = True, timeout_s: float = 10.0) -> AutoDevice:
        return AutoDevice(self.launch, self.placed.append, lambda: may_have_gpus, timeout_s)


async def test_models_go_to_gpus_that_are_found_and_the_process_that_found_them_ends() -> None:
    finder = Finder([GPU])
    auto = finder.auto()
    auto.look()
    assert finder.placed == []
    await auto.settle()
    assert finder.placed == ["gpu"]
    assert finder.ended.is_set()


async def test_gpus_are_looked_for_once_and_again_after_a_reload() -> None:
    finder = Finder([GPU])
    auto = finder.auto()
    for launched in (1, 2):
        auto.look()
        await auto.settle()
        await auto.settle()
        assert finder.launched == launched
        finder.found = []
    assert finder.placed == ["gpu", "cpu"]


async def test_without_a_driver_models_go_to_the_cpu_at_once_and_no_process_starts() -> None:
    finder = Finder([GPU])
    auto = finder.auto(may_have_gpus=False)
    auto.look()
    assert finder.placed == ["cpu"]
    await auto.settle()
    assert (finder.launched, finder.placed) == (0, ["cpu"])


@pytest.mark.parametrize(("silent", "timeout_s"), [(False, 10.0), (True, 0.01)])
async def test_a_process_that_crashes_or_hangs_leaves_models_on_the_cpu_with_a_warning(
    *, silent: bool, timeout_s: float
) -> None:
    finder = Finder(None, silent=silent)
    auto = finder.auto(timeout_s=timeout_s)
    auto.look()
    with capture_logs() as logs:
        await auto.settle()
    assert finder.placed == ["cpu"]
    assert finder.ended.is_set()
    assert [each["log_level"] for each in logs if each["event"] == "devices.unknown"] == ["warning"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nvidia0", True),
        ("nvidiactl", True),
        ("dri/renderD128", True),
        ("kfd", True),
        ("dxg", True),
        ("dri/card0", False),
        ("null", False),
    ],
)
def test_a_gpu_is_possible_where_a_drivers_file_is(tmp_path: Path, path: str, *, expected: bool) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert may_have_gpus(tmp_path, "linux") == expected
    assert may_have_gpus(tmp_path, "darwin")


@pytest.mark.slow
async def test_a_real_engine_reports_its_devices() -> None:
    pytest.importorskip("llama_cpp")
    placed: list[str] = []
    auto = AutoDevice(launch, placed.append, lambda: True)
    with capture_logs() as logs:
        await auto.settle()
    assert [each["event"] for each in logs] == ["devices.found"]
    assert placed == ["gpu" if logs[0]["devices"] else "cpu"]
