"""What the doctor hears from the daemon: its version, its models, their memory and device."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import UNSET

from car_client.async_client import AsyncClient
from car_client.carctl.downloads import mend
from car_client.carctl.failure import explain
from car_client.carctl.finding import Finding, Level
from car_client.errors import CardError
from car_protocol import PROTOCOL, __version__
from car_protocol.models import Model
from car_protocol.status import Status

_MIB = 1024**2
_GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128")
_PATIENCE_S = 5.0
_LOGS = "`carctl service logs` may say more"
_BUILD = 'build it for the GPU (docs/operations.md, "GPU builds") and set gpu_layers = -1'


def findings(socket: Path, gpus: Iterable[str] = _GPUS, patience_s: float = _PATIENCE_S) -> list[Finding]:
    """Ask the daemon and look at its answer."""
    try:
        status = asyncio.run(_ask(socket, patience_s))
    except TimeoutError:
        return [Finding("fail", "answer", f"no answer in {patience_s:g} s", f"{_LOGS}; if it stays so, restart it")]
    except CardError as error:
        return [Finding("fail", "answer", explain(error), _LOGS)]
    gpu = next((path for path in gpus if Path(path).exists()), None)
    return [found for look in _LOOKS for found in look(status, gpu)]


async def _ask(socket: Path, patience_s: float) -> Status:
    async with asyncio.timeout(patience_s), AsyncClient(socket) as client:
        return await client.status()


def _version(status: Status, _: str | None) -> Iterator[Finding]:
    if status.protocol != PROTOCOL:
        facts = f"the daemon speaks protocol {status.protocol}, carctl {PROTOCOL}"
        yield Finding("fail", "version", facts, "upgrade the older one")
    elif status.version != __version__:
        facts = f"the daemon is {status.version}, carctl {__version__}"
        yield Finding("warn", "version", facts, "restart the daemon after an upgrade")
    else:
        yield Finding("ok", "version", f"{__version__} on both sides")


def _models(status: Status, _: str | None) -> Iterator[Finding]:
    for model in status.models:
        yield _model(model)


def _model(model: Model) -> Finding:
    what = f"{model.name}, {model.state}"
    if model.state == "failed":
        reason = model.reason if model.reason is not UNSET else "unknown"
        return Finding("fail", "model", f"{what}: {reason}", mend(model))
    if model.size_bytes is None:
        level: Level = "fail" if model.default else "warn"
        return Finding(level, "model", f"{what}: no file {model.path}", mend(model))
    return Finding("ok", "model", f"{what}: {model.path}, {_mib(model.size_bytes)}")


def _memory(status: Status, _: str | None) -> Iterator[Finding]:
    memory, inputs = status.memory, status.capacity.inputs or {}
    free = f"{_mib(memory.available)} of {_mib(memory.total)} available"
    if memory.pressure != "none":
        yield Finding("warn", "memory", f"{free}, pressure {memory.pressure}", "end other programs")
        return
    for model in status.models:
        if model.state != "ready" and (model.size_bytes or 0) > memory.available:
            facts = f"{free}; {model.name} takes {_mib(model.size_bytes or 0)}"
            yield Finding("warn", "memory", facts, "it does not fit now")
    each = inputs.get("kv_bytes_per_sequence")
    taken = f", {each / _MIB:.0f} MiB a sequence of {status.capacity.model}" if each else ""
    yield Finding("ok", "memory", free + taken)


def _device(status: Status, gpu: str | None) -> Iterator[Finding]:
    for model in status.models:
        if model.state != "ready":
            continue
        if model.device == "cpu" and gpu is not None:
            yield Finding("warn", "device", f"{model.name} on the CPU beside {gpu}", _BUILD)
        else:
            yield Finding("ok", "device", f"{model.name} on {model.device}")


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


_LOOKS: tuple[Callable[[Status, str | None], Iterator[Finding]], ...] = (_version, _models, _memory, _device)
