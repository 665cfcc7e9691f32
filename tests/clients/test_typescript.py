"""The TypeScript client: its types, its own tests, and its package as a newcomer installs it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from car_protocol import __version__
from car_protocol.methods import describe
from tests.clients.support import SCRIPTED, scripted_daemon
from tests.e2e.support import BIN, ROOT
from tools.typescript_types import TARGET, module

PACKAGE = ROOT / "client" / "typescript"
CASES = Path(__file__).parent / "cases.json"
installed = pytest.mark.skipif(
    not (PACKAGE / "node_modules").exists(), reason="make typescript installs what the client is built with"
)


@pytest.fixture(scope="module")
def built() -> None:
    """The client and its tests, compiled."""
    npm(PACKAGE, "run", "pretest")


def test_the_types_are_those_of_the_protocol() -> None:
    assert TARGET.read_text(encoding="utf-8") == module(describe()), "make docs writes them"


def test_it_has_the_version_of_the_daemon() -> None:
    assert json.loads((PACKAGE / "package.json").read_text())["version"] == __version__


def test_it_depends_on_nothing() -> None:
    assert "dependencies" not in json.loads((PACKAGE / "package.json").read_text())


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("built")  # by the compiler, without a complaint
def test_it_is_clean_by_compiler_and_linter() -> None:
    npm(PACKAGE, "run", "lint")


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_its_own_tests_pass_against_a_daemon_with_scripted_engines() -> None:
    env = {"CARD_TEST_DAEMON": json.dumps(SCRIPTED), "CARD_TEST_CASES": str(CASES), "PYTHONPATH": str(ROOT)}
    run(PACKAGE, "node", "--test", "build/test/", **env)


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_its_calls_are_answered_by_a_real_model() -> None:
    run(PACKAGE, "node", "--test", "build/test/calls.test.js", CARD_TEST_DAEMON=json.dumps([str(BIN / "card")]))


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_the_package_holds_its_build_alone_and_works_in_an_empty_folder(tmp_path: Path) -> None:
    packed = json.loads(npm(PACKAGE, "pack", "--json", "--ignore-scripts", "--pack-destination", str(tmp_path)))
    files = {each["path"] for each in packed[0]["files"]}
    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts"} <= files
    assert all(name.startswith("dist/") for name in files - {"package.json", "README.md"})

    app = tmp_path / "app"
    app.mkdir()
    (app / "package.json").write_text('{"type": "module"}')
    npm(app, "install", "--no-package-lock", "--no-audit", str(tmp_path / packed[0]["filename"]))
    (app / "jobs.mjs").write_text((PACKAGE / "build" / "examples" / "pool.js").read_text())
    daemon = scripted_daemon(tmp_path)
    try:
        answered = run(app, "node", "jobs.mjs", "one", "two", "three", CAR_SOCKET=str(daemon.path)).splitlines()
    finally:
        daemon.kill()
    assert len(answered) == 3
    assert {line.partition(": ")[2].partition(" ->")[0] for line in answered} == {"one", "two", "three"}


def npm(folder: Path, *words: str, **env: str) -> str:
    """Run npm in a folder and return what it printed; a failure shows it."""
    return run(folder, "npm", *words, **env)


def run(folder: Path, *command: str, **env: str) -> str:
    """Run a command in a folder and return what it printed; a failure shows it."""
    ended = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
