"""`carctl service`: installs and controls card under the service manager of this machine."""

import shutil
import sys
import sysconfig
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

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
    parser.add_argument("--dry-run", action="store_true", help="print the steps without taking them")
    parser.add_argument("--lines", type=int, default=100, metavar="N", help="last lines of the log (default: 100)")
    parser.add_argument("--follow", action="store_true", help="print new lines of the log until Ctrl-C")


def run(_client: Client, options: Namespace) -> None:
    """Take a step with the service manager of this platform; raises ServiceError."""
    manager = manager_of(Steps(dry_run=options.dry_run), system=options.system, gpu=options.gpu)
    ACTIONS[options.action](manager, options)


def manager_of(steps: Steps, *, system: bool, gpu: bool = False) -> Manager:
    """Return the service manager of this platform; raises ServiceError."""
    if sys.platform != "darwin":
        return SystemUnits(steps, gpu=gpu) if system else UserUnits(steps)
    if system:
        raise ServiceError("there is no system service on macOS: leave --system out")
    return Agent(steps)


def card_command() -> Path:
    """Return the absolute path of the `card` command of this installation; raises ServiceError."""
    return installed_command("card", "daemon")


def installed_command(name: str, extra: str) -> Path:
    """Return the absolute path of a command of this installation, of an extra; raises ServiceError."""
    folders = (Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    for found in (shutil.which(name, path=str(folder)) for folder in folders):
        if found is not None:
            return Path(found)
    raise ServiceError(f"there is no {name} command beside this carctl: pip install 'card-daemon[{extra}]'")
