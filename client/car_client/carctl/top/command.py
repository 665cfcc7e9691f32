"""`carctl top`: the running requests, live, with keys to sort, cancel and quit."""

import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from car_client.carctl.failure import WrongUse, explain
from car_client.carctl.terminal.keyboard import key_by_key, pressed
from car_client.carctl.terminal.text import is_terminal
from car_client.carctl.top.state import TopState
from car_client.client import Client
from car_client.errors import RequestError
from car_client.results import Status
from car_client.watch import StatusWatch

if TYPE_CHECKING:
    from car_client.carctl.view.picture import Screen

_INTERVAL_S = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    """Declare no options."""


def run(client: Client, options: Namespace) -> None:
    """Show the running requests until `q` is pressed; raises WrongUse without a terminal or rich."""
    if not (is_terminal(sys.stdout) and sys.stdin.isatty()):
        raise WrongUse("top needs a terminal: use `carctl status --watch` here")
    try:
        from car_client.carctl.view.picture import screen
    except ModuleNotFoundError as error:
        raise WrongUse("top needs rich: pip install 'card-daemon[terminal]'") from error
    watch = client.watch_status(_INTERVAL_S)
    # Read before the screen is taken, so that without a daemon the terminal stays as it is.
    first = next(watch)
    with key_by_key(sys.stdin.fileno()), screen() as drawn:
        _loop(client, drawn, TopState(), watch, first)


def _loop(client: Client, drawn: "Screen", state: TopState, watch: StatusWatch, status: Status) -> None:
    from car_client.carctl.top.view import view

    keyboard = sys.stdin.fileno()
    state.update(status, time.monotonic())
    while not state.over:
        drawn.show(view(state, status, drawn.width, drawn.height))
        if watch.wait(keyboard):
            for key in pressed(keyboard):
                _press(client, state, key)
        if news := watch.take():
            status = news
            state.update(status, time.monotonic())


def _press(client: Client, state: TopState, key: str) -> None:
    if target := state.press(key):
        try:
            client.cancel_request(target.connection, target.id)
        except RequestError as error:
            state.message = explain(error)
        else:
            state.message = f"request {target.connection}:{target.id} is cancelled"
