"""The placer process and the link to it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from car_daemon.engines.link import EngineLink
from car_daemon.host.event_log import log
from car_daemon.ipc.placing import FromPlacer, decode_from_placer
from car_daemon.ipc.spawning import passed_on

_END_S = 2.0


class PlacerProcess:
    """A process that runs `command` with the descriptor of its link; `ended` is called once with its status."""

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink, ended: Callable[[int], None]) -> None:
        self._process = process
        self._link = link
        self._ended = ended
        self._watch = asyncio.create_task(self._until_end(), name="placer")

    def __repr__(self) -> str:
        return f"<PlacerProcess pid={self.pid}>"

    @classmethod
    async def start(
        cls, command: Sequence[str], receive: Callable[[FromPlacer], None], ended: Callable[[int], None]
    ) -> "PlacerProcess":
        """Start the process; raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
            unless_started.pop_all()
        ours.setblocking(False)
        _, link = await asyncio.get_running_loop().create_unix_connection(
            lambda: EngineLink(receive, decode_from_placer), sock=ours
        )
        return cls(process, link, ended)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_up(self) -> bool:
        """Whether it still takes orders."""
        return not self._link.closed.is_set()

    def send(self, message: Struct) -> None:
        """Send one frame; it is dropped once the process is gone."""
        self._link.send(message)

    def kill(self) -> None:
        """Kill the process, where it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Close the link, which ends the process; kill it where that takes too long."""
        self._link.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self.kill()
        await self._watch

    async def _until_end(self) -> None:
        await self._link.closed.wait()
        if self._link.fault is not None:
            self.kill()
        status = await self._process.wait()
        log.info("placer.ended", status=status)
        self._ended(status)


def _environment() -> dict[str, str]:
    """Return the variables that the placer gets: those of an engine, and Ray's."""
    ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return {"PYTHONSAFEPATH": "1"} | passed_on(os.environ) | ray
