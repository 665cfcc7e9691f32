"""Entry of the placer process: `python -m car_placer FD` with a connected socket to the daemon."""

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from car_base.ipc.placing import Join
from car_placer.service import Service, end_with
from car_placer.shortage import NotConnected

if TYPE_CHECKING:
    from car_placer.ray_cluster import RayCluster

INSTALL = "pip install 'card-daemon[cluster]'"


def connect(join: Join) -> "RayCluster":
    """Return the cluster, connected; raises NotConnected."""
    # Before Ray is imported, because it reads its variables then.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if join.token is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = join.token
        os.environ.pop("RAY_AUTH_TOKEN", None)
    try:
        from car_placer.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        raise NotConnected(f"engines are placed by Ray, and {error.name} is not installed: {INSTALL}") from error
    return RayCluster(join)


async def main(descriptor: int) -> None:
    """Serve the daemon, and end the process."""
    daemon = socket.socket(fileno=descriptor)
    end_with(daemon)
    status = await Service(daemon, connect).run()
    # At once, because Ray's own way out takes seconds, and a call of it may hang in a thread.
    os._exit(status)


if __name__ == "__main__":
    # The daemon decides when it ends, also if a terminal's keys reach both.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(main(int(sys.argv[1])))
