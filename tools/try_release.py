"""Install each file of a release in an empty environment, as a user does, and have a question answered.

`python -m tools.try_release FOLDER` prints the seconds that each step took.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

EXTRAS = "daemon,terminal"
QUESTION = "What is card?"
# What a user has not installed.
UNWANTED = ("pytest", "ruff", "mypy", "matplotlib")


def main() -> None:
    """Try the wheel and the source distribution; a failed step ends the process."""
    folder = Path(sys.argv[1]).resolve()
    for file in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        print(f"{file.name}:", flush=True)
        with tempfile.TemporaryDirectory() as place:
            _try(file, Path(place))


def _try(file: Path, place: Path) -> None:
    venv.create(place / "env", with_pip=True)
    commands = place / "env" / "bin"
    env = {**os.environ, "HOME": str(place), "CAR_SOCKET": str(place / "card.sock"), "XDG_STATE_HOME": str(place)}
    _step("install", [commands / "python", "-m", "pip", "install", "--quiet", f"{file}[{EXTRAS}]"], dict(os.environ))
    for package in UNWANTED:
        imported = subprocess.run([commands / "python", "-c", f"import {package}"], capture_output=True, check=False)
        if imported.returncode == 0:
            raise SystemExit(f"{package} was installed, which no user needs")
    _step("card --check", [commands / "card", "--check"], env)
    try:
        _step("carctl up", [commands / "carctl", "up"], env)
        _step("carctl infer", [commands / "carctl", "infer", QUESTION], env)
    finally:
        _step("carctl down", [commands / "carctl", "down"], env)


def _step(name: str, command: list[str | Path], env: Mapping[str, str]) -> None:
    started = time.monotonic()
    subprocess.run(command, env=env, check=True)
    print(f"  {name}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
