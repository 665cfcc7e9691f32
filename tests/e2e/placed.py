"""A daemon whose model `big` has engines on machines of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from car_base.guide import PATH
from tests.e2e.support import Daemon, RawClient, configured

Json = dict[str, Any]


@contextmanager
def placed(
    folder: Path,
    cluster: str,
    model: str = "",
    *,
    up: int = 2,
    replicas: int = 2,
    path: Path = PATH,
    **options: Any,
) -> Iterator[Daemon]:
    """Run a daemon once `up` of its engines are up, each of four sequences.

    `cluster` and `model` are further lines of the two tables, and `options` those of Daemon.
    """
    table = f'[models.big]\npath = "{path}"\nplace = "ray"\nreplicas = {replicas}\nsequences = 4\n{model}'
    text = f'default_model = "big"\n[cluster]\n{cluster}\n{table}'
    daemon = Daemon(folder, *configured(folder, text), **options)
    try:
        until_up(daemon, up)
        yield daemon
    finally:
        daemon.stop()


def big(client: RawClient) -> Json:
    """Return the placed model as the status has it."""
    model: Json = client.result("daemon/status")["models"][0]
    return model


def until_up(daemon: Daemon, count: int) -> None:
    """Return once so many engines serve; the subscription notifies of every change."""
    with daemon.connect() as client:
        client.response(client.send("inference/capacity", {"subscribe": True}))
        while big(client)["up"] != count:
            client.receive()
