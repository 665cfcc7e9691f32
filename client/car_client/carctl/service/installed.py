"""The commands of this installation, by their absolute paths, which service files need."""

import shutil
import sys
import sysconfig
from pathlib import Path

from car_client.carctl.service.steps import ServiceError


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
