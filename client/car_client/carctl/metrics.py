"""`carctl metrics`: the daemon's figures as Prometheus reads them."""

from argparse import ArgumentParser, Namespace

from car_client.client import Client


def add_arguments(parser: ArgumentParser) -> None:
    """There is nothing to choose."""


def run(client: Client, options: Namespace) -> None:
    """Print the figures."""
    print(client.metrics(), end="")
