"""`carctl cluster`: this machine joins a cluster, or its state is shown."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator

from car_client.carctl.cluster import joining
from car_client.carctl.failure import Reported, WrongUse
from car_client.carctl.terminal.text import columns, one_line
from car_client.client import Client
from car_client.results import ModelStatus
from car_protocol.status import ClusterStatus, NodeStatus

_NONE = (
    "this daemon reports no cluster: add the table [cluster] to its configuration (docs/howto/cluster.md), and run "
    "this as its own user or root"
)


def show(client: Client, _options: Namespace) -> None:
    """Print the state; raises Reported if the daemon has no connection to the cluster."""
    status = client.status()
    if status.cluster is None:
        raise WrongUse(_NONE)
    placed = [model for model in status.models if model.place == "ray"]
    print(*map(one_line, lines(status.cluster, placed)), sep="\n")
    if status.cluster.reason is not None:
        raise Reported(status.cluster.reason)


def lines(cluster: ClusterStatus, placed: Iterable[ModelStatus]) -> Iterator[str]:
    """Yield the cluster's line, one for each machine and one for each model."""
    yield f"cluster at {cluster.address}: {connection(cluster)}"
    if cluster.nodes:
        rows = [
            (node.address, f"{node.cpus:g}", f"{node.gpus:g}", str(node.engines), node_state(node))
            for node in cluster.nodes
        ]
        yield from columns([("node", "cpus", "gpus", "engines", "state"), *rows])
    # Below the table, because they are longer than its lines.
    yield from (f"{node.address}: {node.reason}" for node in cluster.nodes if node.reason is not None)
    for model in placed:
        wait = f"; waits for a place: {model.waiting_for}" if model.waiting_for is not None else ""
        yield f"{model.name}: {model.state}, {model.up} of {model.replicas} engines{wait}"


def connection(cluster: ClusterStatus) -> str:
    """Return the state of the placer's connection."""
    if cluster.reason is not None:
        return f"not connected: {cluster.reason}"
    if cluster.ray is None:
        return "no engine has needed a place yet" if cluster.placer_pid is None else "connecting"
    up = sum(node.alive for node in cluster.nodes)
    return f"Ray {cluster.ray}, {up} of {len(cluster.nodes)} nodes up, placer {cluster.placer_pid}"


def node_state(node: NodeStatus) -> str:
    """Return whether a machine gets engines."""
    if not node.alive:
        return "down"
    return "up" if node.avoided_s is None else f"avoided for {node.avoided_s:.0f} s"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("status", help="show the machines of the cluster and the engines on them")
    join = actions.add_parser("join", help="make this machine a node, until Ctrl-C", allow_abbrev=False)
    joining.add_arguments(join)


def run(client: Client, options: Namespace) -> None:
    """Run an action; raises CardError."""
    _ACTIONS[options.action](client, options)


_ACTIONS = {"status": show, "join": joining.run}
