"""`carctl people`: add, list and remove the people that may use the HTTP door, each by a key of its own."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from car_client.carctl.admin import reload_config
from car_client.carctl.config.card_toml import CardToml, config_path
from car_client.carctl.failure import WrongUse
from car_client.client import Client
from car_client.door.keys import digest_of, is_name, new_secret
from car_client.errors import DaemonUnavailable

_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1000.0


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a person, and print its key, once", allow_abbrev=False)
    limit = actions.add_parser("limit", help="change the share and the limit of a person", allow_abbrev=False)
    for each in (add, limit):
        each.add_argument("name", metavar="NAME", type=_name)
        each.add_argument("--weight", type=_weight, metavar="W", help="its share (default: 1)")
        each.add_argument("--in-flight", type=_count, metavar="N", help="requests at once (default: as many as users)")
    actions.add_parser("list", help="print the people, their shares and limits")
    remove = actions.add_parser("remove", help="remove a person: its key is refused at once", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME", type=_name)


def run(client: Client, options: Namespace) -> None:
    """Run an action; raises ConfigUnwritable, ConfigRefused and WrongUse."""
    with CardToml(config_path(system=options.system)) as config:
        if options.action == "list":
            for name, table in sorted(config.people.items()):
                share, most = table.get("weight", 1), table.get("in_flight", "any")
                key = "has a key" if "key" in table else "no key"
                print(f"{name}  weight {share:g}  in flight {most}  {key}")
            return
        if (options.name in config.people) == (options.action == "add"):
            people = ", ".join(sorted(config.people)) or "none"
            state = "has a key already" if options.action == "add" else "is not among the people"
            raise WrongUse(f"{options.name} {state}: {people}")
        secret = new_secret()
        given = {key: getattr(options, key, None) for key in ("weight", "in_flight")}
        table = {key: value for key, value in given.items() if value is not None}
        if options.action == "limit" and not table:
            raise WrongUse("give --weight or --in-flight")
        if options.action == "add":
            table = {"key": digest_of(secret), **table}
        config.set_person(options.name, None if options.action == "remove" else table)
        config.save()
        try:
            reload_config(client)
        except DaemonUnavailable:
            print(f"{config.path} is written: a daemon reads it when it starts")
    if options.action == "add":
        print(secret)


def _name(text: str) -> str:
    if is_name(text):
        return text
    raise ArgumentTypeError("name a person by up to 64 letters, digits, `_`, `.` and `-`")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text[:9]) > 0:
        return int(text[:9])
    raise ArgumentTypeError("give 1 or more")


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        return weight
    raise ArgumentTypeError(f"give {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}")
