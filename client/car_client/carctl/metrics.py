"""`carctl metrics`: the daemon's metrics as Prometheus text."""

from argparse import ArgumentParser, Namespace

from car_client.client import Client


def add_arguments(parser: ArgumentParser) -> None:
    """Declare no options."""


def run(client: Client, options: Namespace) -> None:
    """Print the metrics."""
    print(client.metrics(), end="")
