"""The device of models without a stated one: GPUs if llama.cpp finds any, else the CPU."""

import asyncio
from collections.abc import Callable
from typing import Any

from car_base.host.devices import CPU, GPU, Device
from car_base.host.event_log import log
from car_base.ipc.frames import DeviceMemory, Devices, FindDevices, FromEngine
from car_daemon.engines.link import Launcher

# A driver that starts a GPU may take seconds.
FIND_TIMEOUT_S = 20.0


class AutoDevice:
    """Decides what `auto` is, once a daemon and after each reload: `place` gets `gpu` or `cpu`.

    Only a process that ends right after finds GPUs, because a driver may crash, and keeps memory of the GPUs. A machine
    without a GPU's driver (`may_have_gpus`) starts none.
    """

    def __init__(
        self,
        launch: Launcher,
        place: Callable[[str], None],
        may_have_gpus: Callable[[], bool],
        timeout_s: float = FIND_TIMEOUT_S,
    ) -> None:
        self._launch = launch
        self._place = place
        self._may_have_gpus = may_have_gpus
        self._timeout_s = timeout_s
        self._known = False

    def __repr__(self) -> str:
        return f"<AutoDevice known={self._known}>"

    def look(self) -> None:
        """Place models on the CPU at once if there is no GPU; else the next load finds the GPUs anew."""
        self._known = not self._may_have_gpus()
        if self._known:
            self._place(CPU)

    async def settle(self) -> None:
        """Return once the device is known; one call at a time."""
        if not self._known:
            found = await self.find()
            self._known = True
            log.info("devices.found", devices=[f"{each.name}, {each.total >> 20} MiB" for each in found])
            self._place(GPU if found else CPU)

    async def find(self) -> list[Device]:
        """Return the GPUs with their memory now; none if the process fails."""
        return [Device(each.name, each.free, each.total, each.shared) for each in await self._found()]

    async def _found(self) -> list[DeviceMemory]:
        reply: asyncio.Future[list[DeviceMemory]] = asyncio.get_running_loop().create_future()

        def receive(message: FromEngine) -> None:
            if isinstance(message, Devices) and not reply.done():
                reply.set_result(message.found)

        try:
            engine = await self._launch(receive, None)
        except OSError as error:
            log.warning("devices.unknown", why=f"the process that finds GPUs did not start: {type(error).__name__}")
            return []
        ended = asyncio.ensure_future(engine.wait())
        ends: list[asyncio.Future[Any]] = [reply, ended]
        try:
            engine.send(FindDevices())
            await asyncio.wait(ends, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            why = f"was silent for {self._timeout_s:g} s" if not ended.done() else f"ended with status {ended.result()}"
            log.warning("devices.unknown", why=f"the process that finds GPUs {why}: set device in the models' entries")
            return []
        finally:
            await engine.stop()
            await ended
