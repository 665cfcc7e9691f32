"""`carctl cluster`: this machine joins a cluster, or its state is shown."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.cluster import joining, state
from car_client.client import Client


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("status", help="show the machines of the cluster and the engines on them")
    join = actions.add_parser("join", help="make this machine a node, until Ctrl-C", allow_abbrev=False)
    joining.add_arguments(join)


def run(client: Client, options: Namespace) -> None:
    """Run an action; raises CardError."""
    _ACTIONS[options.action](client, options)


_ACTIONS = {"status": state.run, "join": joining.run}
