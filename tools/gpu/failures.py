"""Memory as planned, memory that runs out on purpose, and an engine that is killed under load."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from car_base.capacity.placement import reserve_of
from car_base.host.devices import Device
from car_client import AsyncClient, ModelUnavailable
from car_protocol.status import EngineStatus
from tools.gpu.hog import device_memory, memory_taken
from tools.gpu.served import LAYERS, Served, answer, engine, prompts, running_answers
from tools.gpu.verdicts import Verdict, freed, memory

_STREAMS = 8
_LONG = 400
_END_S = 120
# The daemon's exit code where the default model cannot be loaded.
_NOT_LOADED = 69
_UNITS = ("MiB", "GiB", "GB")


def memory_as_planned(served: Served) -> list[Verdict]:
    """Return whether the devices hold what was planned."""
    with served.daemon(sequences=_STREAMS) as (socket, _):
        return memory(asyncio.run(_engine(socket)).devices)


async def _engine(socket: Path) -> EngineStatus:
    async with AsyncClient(socket) as client:
        return await engine(client)


def killed_under_load(served: Served) -> list[Verdict]:
    """Return whether requests end, another engine answers and memory comes back after SIGKILL under load."""
    before = device_memory()
    with served.daemon(sequences=_STREAMS) as (socket, _):
        ended, restarts = asyncio.run(_killed(socket))
    return [
        Verdict("kill -9: every request ends", ended == _STREAMS, f"{ended} of {_STREAMS}"),
        Verdict("kill -9: another engine answers", restarts == 1, f"{restarts} engines started in its place"),
        freed("kill -9: memory comes back", before, device_memory()),
    ]


async def _killed(socket: Path) -> tuple[int, int]:
    """Kill the engine beneath running requests; returns how many of these ended, and the restarts."""
    async with AsyncClient(socket) as client:
        streams = await running_answers(client, _STREAMS, _LONG)
        pid = (await engine(client)).pid
        assert pid is not None, "the engine is on another machine"
        os.kill(pid, signal.SIGKILL)
        done = await asyncio.gather(*streams, return_exceptions=True)
        await answer(client, prompts(1)[0], 4)
        return len(done), (await engine(client)).restarts


def out_of_memory(served: Served) -> list[Verdict]:
    """Return what happens where a second model does not fit the budget, and where the GPU is nearly full."""
    verdicts = [_over_budget(served)]
    found = device_memory()
    if served.device == "cpu" or found is None:
        return [*verdicts, Verdict("out of memory on the device", None, "needs a GPU")]
    # Beyond the reserve not enough for all layers, and more than nothing.
    left = reserve_of(Device("", *found)) + served.model.stat().st_size // 2
    with memory_taken(left):
        return [*verdicts, _nearly_full(served)]


def _over_budget(served: Served) -> Verdict:
    """Load a second model above the budget of the host: it is refused with figures, and the first one answers."""
    second = f'[models.second]\npath = "{served.model}"\ndevice = "cpu"\n'
    config = f"[memory]\nbudget_bytes = {served.model.stat().st_size}\n{second}"
    with served.daemon(sequences=1, config=config) as (socket, _):
        refusal, answered = asyncio.run(_refused(socket))
    holds = any(unit in refusal for unit in _UNITS) and answered == 4
    return Verdict("a model above the budget is refused", holds, f"{refusal}; the first one wrote {answered} tokens")


async def _refused(socket: Path) -> tuple[str, int]:
    async with AsyncClient(socket) as client:
        try:
            await client.load_model("second")
            refusal = "it was loaded"
        except ModelUnavailable as error:
            refusal = str(error.data.get("why", error))
        return refusal, (await answer(client, prompts(1)[0], 4)).usage.completion_tokens


def _nearly_full(served: Served) -> Verdict:
    """Load a model that the GPU has no room for: fewer layers and a correct start, or a refusal with figures."""
    command = [sys.executable, "-c", "from car_daemon.main import main; main()", "--gpu-layers", LAYERS["gpu"]]
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "card.sock"
        flags = ["--model", str(served.model), "--socket", str(socket), "--log-level", "warning"]
        with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as daemon:
            try:
                layers = asyncio.run(_layers(socket, daemon))
            finally:
                daemon.terminate()
                said = daemon.communicate(timeout=_END_S)[1]
    if layers is not None:
        return Verdict("out of memory on the device", True, f"answers with {layers} layers on the GPU")
    holds = daemon.returncode == _NOT_LOADED and any(unit in said for unit in _UNITS)
    return Verdict("out of memory on the device", holds, f"exit code {daemon.returncode}: {said.splitlines()[-1:]}")


async def _layers(socket: Path, daemon: "subprocess.Popen[str]") -> int | None:
    """Return the layers on GPUs once the model answers; None if the daemon ended."""
    asked = asyncio.create_task(_answered(socket))
    ended = asyncio.create_task(asyncio.to_thread(daemon.wait))
    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and asked.exception() is None:
        daemon.terminate()
        return asked.result()
    await ended
    asked.cancel()
    return None


async def _answered(socket: Path) -> int:
    async with AsyncClient(socket, connect_timeout=_END_S) as client:
        await answer(client, prompts(1)[0], 4)
        return sum(device.layers for device in (await engine(client)).devices)
