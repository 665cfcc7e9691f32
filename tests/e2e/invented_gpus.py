"""Invented GPUs for whole daemons: `python -m tests.e2e.invented_gpus` is `card`, or with a descriptor its engine.

The memory of the devices is in files of a folder, where engines add what they take and tests add what others take.
The weights are computed on the CPU; all else, from the search for devices to the plan and its second try, is real.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import uvloop
from msgspec import structs

from car_base.capacity.placement import Placement, device_bytes, devices_of, weights_of
from car_base.host.devices import Device
from car_base.ipc.frames import Load
from car_base.ipc.model_sizes import ModelSizes
from car_daemon.config.settings import Flags, load_config
from car_daemon.engines.link import launch
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.sockets.own_socket import OwnSocket
from car_daemon.telemetry import logs
from car_engine.backend import Backend, ggml_backend
from car_engine.child_server import start_child_server
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.process import EngineProcess

# Of the names that a daemon passes on to its engines.
FOLDER = "GGML_INVENTED_GPUS"


class Gpus:
    """The devices of a folder: their sizes, what processes take of them, and the loads that fail for memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: tuple[ModelSizes, Placement] | None = None  # by this process
        self._names: list[str] = []  # of the devices that its model may use

    def add(self, **total_bytes: int) -> None:
        """Plug the devices in; one whose name begins with "i" shares the host's memory."""
        (self.folder / "gpus.json").write_text(json.dumps(total_bytes))

    def take(self, pid: int, **taken_bytes: int) -> None:
        """Have a process take memory of the devices while it lives."""
        draft = self.folder / f"draft-{pid}"
        draft.write_text(json.dumps(taken_bytes))
        draft.replace(self.folder / f"taken-{pid}")

    def fail(self, times: int, *, what: str = "loads") -> None:
        """Have so many of the next loads, or contexts, run out of memory."""
        (self.folder / f"failing-{what}").write_text(str(times))

    def calls(self, pid: int) -> dict[str, Any]:
        """Return the arguments with which an engine opened its model last, and its context."""
        found: dict[str, Any] = json.loads((self.folder / f"calls-{pid}").read_text())
        return found

    def _record(self, **arguments: object) -> None:
        file = self.folder / f"calls-{os.getpid()}"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | arguments))

    def _fails(self, what: str) -> bool:
        """Return whether this one fails."""
        file = self.folder / f"failing-{what}"
        left = int(file.read_text()) if file.exists() else 0
        if left:
            self.fail(left - 1, what=what)
        return bool(left)

    def read(self) -> tuple[Device, ...]:
        """Return the devices; what dead processes took is free again."""
        taken: dict[str, int] = {}
        for file in self.folder.glob("taken-*"):
            if _is_alive(int(file.name.removeprefix("taken-"))):
                for name, size in json.loads(file.read_text()).items():
                    taken[name] = taken.get(name, 0) + size
        totals = json.loads((self.folder / "gpus.json").read_text())
        return tuple(
            Device(name, max(0, total - taken.get(name, 0)), total, shared=name.startswith("i"))
            for name, total in totals.items()
        )

    def open(self, load: Load, progress: Callable[[float], None], placement: Placement | None) -> LlamaModel:
        """Take the planned weights, and load them for the CPU, with the planned overrides; raises ModelError."""
        if placement is not None and self._fails("loads"):
            raise ModelError("the file is not a model that llama.cpp can load")
        if placement is not None and load.sizes is not None:
            self._opened = load.sizes, placement
            self._names = [each.name for each in devices_of(load.device, self.read())]
            self._record(slots=placement.slots, host_experts=placement.host_experts)
            self._hold(weights_of(*self._opened)[0])
            placement = structs.replace(placement, slots=(0,) * len(placement.slots))
        return ggml_backend().open_model(structs.replace(load, gpu_layers=0, device="cpu"), progress, placement)

    def open_context(
        self, model: LlamaModel, sequences: int, context_tokens: int, threads: int, rollback: int
    ) -> LlamaContext:
        """Take the memory of the sequences, and return a context on the CPU; raises ModelError."""
        self._record(kv_type=model.kv_type, sequences=sequences, context_tokens=context_tokens)
        if self._fails("contexts"):
            raise ModelError("the context could not be created")
        if self._opened is not None:
            self._hold(device_bytes(*self._opened, sequences, context_tokens))
        return LlamaContext(model, sequences=sequences, context_tokens=context_tokens, threads=threads)

    def _hold(self, sizes: list[int]) -> None:
        """Have this process take this much of the devices of its plan."""
        assert self._opened is not None
        self.take(os.getpid(), **dict(zip(self._names, sizes, strict=True)))


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _serve(path: str, config_path: str) -> None:
    flags = Flags(socket=path, config=config_path)
    config = load_config(flags)
    logs.configure(config.log_level, config.log_format)
    seams = Seams(launcher=partial(launch, module="tests.e2e.invented_gpus"), may_have_gpus=lambda: True)
    listening = OwnSocket(config.socket)
    try:
        uvloop.run(Daemon(config, Sockets(listening), seams, lambda: load_config(flags)).run())
    finally:
        listening.close()


if __name__ == "__main__":
    if sys.argv[1] == "--socket":
        _serve(sys.argv[2], sys.argv[4])
    else:
        invented = Gpus(Path(os.environ[FOLDER]))
        daemon = int(sys.argv[1])
        children = start_child_server([int(each) for each in sys.argv[1:]])
        engine = EngineProcess(
            socket.socket(fileno=daemon),
            children,
            lambda: Backend(invented.read, invented.open, invented.open_context),
        )
        os._exit(engine.serve())
