"""A question before a change that is not undone by itself."""

import sys

from car_client.carctl.failure import WrongUse
from car_client.carctl.terminal.keyboard import plain_line
from car_client.carctl.terminal.text import one_line

_YES = ("y", "yes")


def confirmed(change: str, more: str = "") -> bool:
    """Return whether the person at the terminal agrees to a change; raises WrongUse without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUse(f"no terminal to confirm on: give --yes to {change}")
    try:
        answer = plain_line(one_line(f"{change}{more}? [y/N] "))
    except EOFError:
        answer = ""
    return answer.strip().lower() in _YES
