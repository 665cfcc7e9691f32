"""Every fenced block of README.md and docs/ is run as it is written, or is listed here with the reason why not."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from car_client import AsyncClient
from tests.e2e.support import BIN, PATIENCE_S, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks that are not run here, by their page and how they begin.
NOT_RUN = {
    ("README.md", "make demo"): "installs everything anew; the pipeline runs both commands",
    ("README.md", "pip install"): "installs everything anew; make release takes these steps",
    ("carctl.md", "carctl bench --house"): "it takes minutes and another server; test_house_run.py has a stand-in",
    ("coming-from.md", "carctl adopt"): "it needs another server; tests/e2e/test_adopt.py has a stand-in",
    ("cluster.md", "pip install 'card-daemon[daemon,cluster,hub]'\nray get"): "it needs Ray; test_ray.py has a cluster",
    ("cluster.md", "pip install 'card-daemon[daemon,cluster,hub]'\ncarctl cluster join"): "it needs Ray likewise",
    ("http.md", "carctl http enable"): "it changes the units of the user; tests/client/carctl/http has stand-ins",
    ("http.md", "pip install 'card-daemon[http]'"): "it installs the door, which serves until it is ended",
    ("http.md", "pip install 'card-daemon[lan]'"): "it changes the units of the user; test_enable.py has stand-ins",
    ("http.md", "openssl s_client"): "it needs the door of another machine",
    ("http.md", "KEY="): "it needs the door on that port; tests/door has its clients",
    ("http.md", "curl --unix-socket"): "it needs the door; tests/door has its clients",
    ("models.md", "carctl models add"): "it needs the hub; test_add.py has a stand-in",
    ("models.md", "carctl models pull"): "it needs the hub; test_downloads.py takes these steps with a stand-in",
    ("security.md", "pip install --require-hashes"): "it installs everything anew, llama.cpp too",
    ("service.md", "[Service]\nPrivateNetwork"): "a drop-in: systemd checks it in tests/service",
    ("service.md", "[Service]\nExecStart"): "a drop-in: systemd checks it in tests/service",
    ("service.md", "[Service]\nPrivateUsers"): "a drop-in for machines without user namespaces",
    ("team.md", "sudo python3"): "it needs root, and puts a service into the system; tests/service checks the units",
    ("team.md", "sudo carctl --system models"): "it needs the hub; test_add.py has a stand-in",
    (
        "team.md",
        "sudo carctl --system people",
    ): "it needs root; test_people.py has these commands",
    ("team.md", "export OPENAI_BASE_URL"): "it needs the door of another machine; tests/door has its clients",
    ("team.md", "sudo carctl --system usage"): "it needs the system's daemon; tests/e2e/test_usage.py has the command",
    ("tutorial.md", "pip install"): "it installs everything anew; make release takes these steps",
    ("tutorial.md", "carctl up"): "the daemon is up already; tests/client/carctl/service starts one",
    ("tutorial.md", "carctl models suggest"): "it needs the hub; test_add.py has a stand-in",
    (
        "tutorial.md",
        "carctl http enable",
    ): "it changes the units and files of the user; tests/client/carctl has stand-ins",
}
# Drawings and outputs. Configurations are checked below, programs by tests/clients/test_write_a_client.py.
NO_COMMANDS = ("text", "toml", "bash")
pytestmark = pytest.mark.slow
# What commands read, by its name.
FILES = {
    "colours.json": '{"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 3}',
    "letter.txt": "A short letter.\n",
}
# In blocks that print nothing.
QUIET = (">", "kill -USR1")
NEEDS = {"nc": ("-U", "netcat-openbsd")}


class Block(NamedTuple):
    """A fenced block: its page, its language and what is in it."""

    page: str
    language: str
    text: str

    @property
    def why_not(self) -> str | None:
        """Why it is not run, None where it is."""
        return next((why for (page, begin), why in NOT_RUN.items() if self.is_the_one(page, begin)), None)

    def is_the_one(self, page: str, begin: str) -> bool:
        return self.page == page and self.text.startswith(begin)

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:40].strip()}"


BLOCKS = [
    Block(page.name, language, text)
    for page in PAGES
    for language, text in _FENCED.findall(page.read_text(encoding="utf-8"))
]
RUN = [block for block in BLOCKS if block.why_not is None and block.language not in NO_COMMANDS]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A checkout's folder as the commands find it, with a daemon that was started as the README says."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, _started(Path(name)):
        yield Path(name)


@contextmanager
def _started(place: Path) -> Iterator[None]:
    (place / ".venv").symlink_to(BIN.parent)
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "run").mkdir(mode=0o700)
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [".venv/bin/card"],
            cwd=place,
            env=environment(place),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0


@pytest.fixture
async def _ready(folder: Path) -> None:
    async with AsyncClient(folder / "run" / "car" / "card.sock", connect_timeout=PATIENCE_S) as client:
        await client.infer("Hi", max_tokens=1)


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a user who has just installed card."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CAR_", "XDG_"))}
    return {**kept, "HOME": str(place), "XDG_RUNTIME_DIR": str(place / "run"), "PATH": f"{BIN}:{os.environ['PATH']}"}


def command(block: Block) -> list[str]:
    """Return what runs a block."""
    if block.language == "python":
        return [str(BIN / "python"), "-c", block.text]
    return ["bash", "-euo", "pipefail", "-c", block.text]


def lacks(block: Block) -> str | None:
    """Return what this machine lacks for a block."""
    for program, (option, package) in NEEDS.items():
        used = block.language == "" and re.search(rf"\b{program} -", block.text)
        if used and option not in help_of(program):
            return f"there is no {program} that knows {option} here: install {package}"
    if "carctl completion" in block.text and find_spec("shtab") is None:
        return "the extra `terminal` is not installed"
    return None


def help_of(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        return ""
    done = subprocess.run([found, "-h"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.usefixtures("_ready")
@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_runs_as_it_is_written(folder: Path, block: Block) -> None:
    if missing := lacks(block):
        pytest.skip(missing)
    done = subprocess.run(
        command(block),
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or any(quiet in block.text for quiet in QUIET)


def test_the_list_of_blocks_that_are_not_run_is_needed() -> None:
    for page, begin in NOT_RUN:
        assert sum(block.is_the_one(page, begin) for block in BLOCKS) == 1, (page, begin)
    assert {block.language for block in RUN} == {"", "python"}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_a_configuration_on_a_page_is_valid(tmp_path: Path, block: Block) -> None:
    (tmp_path / "card.toml").write_text(block.text)
    command: list[str | Path] = [BIN / "card", "--check-config", "--config", tmp_path / "card.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_s_links_and_pictures_are_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)
