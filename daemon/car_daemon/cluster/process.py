"""The start of the placer process."""

import os
from collections.abc import Callable, Sequence

from car_base.ipc.placing import FromPlacer, decode_from_placer
from car_base.ipc.spawning import passed_on, spawn
from car_daemon.engines.link import ChildProcess, EngineLink, linked


async def start_placer(command: Sequence[str], receive: Callable[[FromPlacer], None]) -> ChildProcess:
    """Return the process of `command` with the descriptor of its link; raises OSError."""
    return await linked(
        lambda theirs: spawn(command, [theirs], _environment()),
        lambda: EngineLink(receive, decode_from_placer, long=()),
    )


def _environment() -> dict[str, str]:
    """Return the variables that the placer gets: those of an engine, and Ray's."""
    ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return {"PYTHONSAFEPATH": "1"} | passed_on(os.environ) | ray
