"""`carctl service`: installs and controls card under the service manager of this machine."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable

from car_client.carctl.failure import WrongUse
from car_client.carctl.service.installed import card_command
from car_client.carctl.service.launchd import Agent
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.systemd import SystemUnits, UserUnits
from car_client.client import Client

# A service manager that can run the daemon.
Manager = Agent | UserUnits | SystemUnits

ACTIONS: dict[str, Callable[[Manager, Namespace], None]] = {
    "install": lambda manager, _: manager.install(card_command()),
    "uninstall": lambda manager, _: manager.uninstall(),
    "status": lambda manager, _: manager.status(),
    "logs": lambda manager, options: manager.logs(options.lines, follow=options.follow),
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("action", choices=list(ACTIONS), help="the step to take")
    parser.add_argument("--system", action="store_true", default=SUPPRESS, help="of the machine in place of this user")
    parser.add_argument("--gpu", action="store_true", help="let the system service use GPUs")
    parser.add_argument("--people", action="store_true", help="the system service serves people by HTTP, with keys")
    parser.add_argument(
        "--lan",
        nargs="?",
        const="",
        metavar="ADDRESS:PORT",
        help="with --people: serve other machines too, by TLS (default: all addresses, port 8322)",
    )
    parser.add_argument("--name", action="append", metavar="NAME", help="with --lan: a name of this machine there")
    parser.add_argument("--dry-run", action="store_true", help="print the steps without taking them")
    parser.add_argument("--lines", type=int, default=100, metavar="N", help="last lines of the log (default: 100)")
    parser.add_argument("--follow", action="store_true", help="print new lines of the log until Ctrl-C")


def run(_client: Client, options: Namespace) -> None:
    """Take a step with the service manager of this platform; raises ServiceError and WrongUse."""
    steps = Steps(dry_run=options.dry_run)
    manager = manager_of(steps, system=options.system, gpu=options.gpu)
    if options.action == "install" and not options.dry_run and not isinstance(manager, Agent):
        manager.require()
    if not isinstance(manager, SystemUnits):
        if options.people or options.lan is not None:
            raise WrongUse("--people is of the system service: sudo carctl --system service install --people")
        ACTIONS[options.action](manager, options)
        return
    # Imported here because no other service needs it.
    from car_client.carctl.service.team import TeamDoor

    door = TeamDoor(steps)
    if options.action == "install" and options.people:
        settings = door.configure(options.lan, options.name)
        manager.install(card_command())
        door.install(settings)
        return
    if options.action == "uninstall":
        door.uninstall()
    ACTIONS[options.action](manager, options)


def manager_of(steps: Steps, *, system: bool, gpu: bool = False) -> Manager:
    """Return the service manager of this platform; raises ServiceError."""
    if sys.platform != "darwin":
        return SystemUnits(steps, gpu=gpu) if system else UserUnits(steps)
    if system:
        raise ServiceError("there is no system service on macOS: leave --system out")
    return Agent(steps)
