"""`carctl people`: add, list and remove the people that may use the HTTP door, each by a key of its own."""

import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from car_client.carctl.admin import ConfigRefused, reload_config
from car_client.carctl.config.card_toml import CardToml, ConfigChanged, config_path
from car_client.carctl.failure import WrongUse
from car_client.client import Client
from car_client.door.keys import digest_of, is_name, new_secret
from car_client.errors import DaemonUnavailable, RequestError

_KEYS = ("weight", "in_flight", "tokens_per_day", "background")
_COUNT_DIGITS = 12
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1000.0


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a person, and print its key, once", allow_abbrev=False)
    limit = actions.add_parser("limit", help="change the share and the limits of a person", allow_abbrev=False)
    for each in (add, limit):
        each.add_argument("name", metavar="NAME", type=_name)
        given: dict[str, Any] = {"default": SUPPRESS}
        each.add_argument("--weight", type=_weight, metavar="W", help="its share (default: 1)", **given)
        each.add_argument("--in-flight", type=_count, metavar="N|none", help="requests at once", **given)
        each.add_argument("--tokens-per-day", type=_count, metavar="N|none", help="tokens until midnight", **given)
        each.add_argument(
            "--background", action=BooleanOptionalAction, help="its requests give way to those of others", **given
        )
    actions.add_parser("list", help="print the people, their shares and limits")
    remove = actions.add_parser("remove", help="remove a person: its key is refused at once", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME", type=_name)


def run(client: Client, options: Namespace) -> None:
    """Run an action; raises ConfigUnwritable, ConfigRefused and WrongUse.

    The file is as it was if the daemon refuses it or reads another, or if the key cannot be printed.
    """
    if options.action == "list":
        for name, table in sorted(CardToml(config_path(system=options.system)).people.items()):
            print(f"{name}  {_described(table)}")
        return
    secret = new_secret()
    with _saved(options, secret) as config:
        try:
            reload_config(client)
            if options.action == "add":
                _check_known(client, options.name, config)
        except DaemonUnavailable:
            print(f"{config.path} is written: a daemon reads it when it starts", file=sys.stderr)
        if options.action == "add":
            print(secret, flush=True)


def _check_known(client: Client, name: str, config: CardToml) -> None:
    """Raise ConfigRefused unless the daemon knows a person of the file."""
    try:
        # Any call may name a person; this one loads no model.
        client.call("daemon/why", {"person": name})
    except RequestError as error:
        if error.reason != "not_permitted":
            raise
        facts = f"the daemon does not read {config.path}, or may not be told a person by this user"
        raise ConfigRefused(f"{facts}: add [people.{name}] to its own file, or name another --socket") from error


def _saved(options: Namespace, secret: str) -> CardToml:
    """Return the file with the change, which is made again if another program changed the file at the same time."""
    while True:
        config = CardToml(config_path(system=options.system))
        config.set_person(options.name, _table(config.people, options, secret))
        # Of programs that save at the same time one succeeds.
        with suppress(ConfigChanged):
            config.save()
            return config


def _table(people: Mapping[str, Mapping[str, Any]], options: Namespace, secret: str) -> dict[str, Any] | None:
    """Return the changes of a person's table, None to remove it; raises WrongUse."""
    known, names = people.get(options.name), ", ".join(sorted(people)) or "none"
    if options.action != "add" and known is None:
        raise WrongUse(f"{options.name} is not among the people: {names}")
    if options.action == "remove":
        return None
    given = {key: value for key, value in vars(options).items() if key in _KEYS}
    if options.action == "add":
        # A table with limits alone was written by hand, and `add` gives its person the key.
        if known is not None and "key" in known:
            raise WrongUse(f"{options.name} has a key already: {names}")
        return {"key": digest_of(secret), **given}
    if not given:
        raise WrongUse("give --weight, --in-flight, --tokens-per-day or --background")
    return given


def _described(table: Mapping[str, Any]) -> str:
    weight = table.get("weight", 1)
    figures = [
        f"weight {weight:g}" if isinstance(weight, int | float) else f"weight {weight!r}: not a number",
        f"in flight {table.get('in_flight', 'any')}",
    ]
    if "tokens_per_day" in table:
        figures.append(f"{table['tokens_per_day']} tokens a day")
    if table.get("background"):
        figures.append("background")
    return "  ".join([*figures, "has a key" if "key" in table else "no key"])


def _name(text: str) -> str:
    if is_name(text):
        return text
    raise ArgumentTypeError("name a person by up to 64 letters, digits, `_`, `.` and `-`")


def _count(text: str) -> int | None:
    if text == "none":
        return None
    if text.isascii() and text.isdigit() and len(text) <= _COUNT_DIGITS and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"give 1 to {10**_COUNT_DIGITS - 1}, or none")


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        return weight
    raise ArgumentTypeError(f"give {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}")
