"""The sandbox of an engine: a model answers in it, and its filters bind every thread while it generates."""

import asyncio
import contextlib
from pathlib import Path
from typing import NamedTuple

from car_client import AsyncClient
from tools.gpu.served import Served, engine, running_answers
from tools.gpu.verdicts import Verdict

_STREAMS = 4
_TOKENS = 400
# The filter before the file is read. Beside a GPU it allows what the driver needs to start, and the whole one follows.
_FILTERS = {"cpu": 1, "gpu": 2}


class Contained(NamedTuple):
    """The means in force, how many filters each thread has that the daemon has not, and the layers on GPUs."""

    means: list[str]
    filters: set[int]
    layers: int


def sandboxed(served: Served) -> list[Verdict]:
    """Return whether a model answers in the sandbox, and whether the filters bind every thread meanwhile."""
    with served.daemon(sequences=_STREAMS) as (socket, daemon):
        found = asyncio.run(_contained(socket, daemon.pid))
    return verdicts_of(served.device, found)


def verdicts_of(device: str, found: Contained) -> list[Verdict]:
    """Return whether the engine of a device had a filter, and whether each of its threads had all of them."""
    expected = _FILTERS[device]
    means = f"{', '.join(found.means) or 'none'}; {found.layers} layers on GPUs"
    counts = " or ".join(map(str, sorted(found.filters))) or "no thread"
    return [
        Verdict("sandbox: a model answers in it", "seccomp" in found.means, means),
        Verdict("sandbox: filters while it generates", found.filters == {expected}, f"{counts}, {expected} expected"),
    ]


async def _contained(socket: Path, daemon: int) -> Contained:
    async with AsyncClient(socket) as client:
        streams = await running_answers(client, _STREAMS, _TOKENS)
        found = await engine(client)
        assert found.pid is not None, "the engine is on another machine"
        own = min(filters_of(daemon))
        filters = {count - own for count in filters_of(found.pid)}
        await asyncio.gather(*streams)
        return Contained(found.sandbox, filters, sum(device.layers for device in found.devices))


def filters_of(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return how many filters of system calls each thread of a process has; needs Linux 5.9."""
    found = []
    for status in (proc / str(pid) / "task").glob("*/status"):
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            values = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
            found.append(int(values["Seccomp_filters"]))
    return found
