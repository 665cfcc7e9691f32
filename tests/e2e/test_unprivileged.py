"""Engines of users without privileges are confined alike: where tests run as root, some run again as another user."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import PATIENCE_S, ROOT

NOBODY = 65534
# Another user may not enter the folders of root's Python; reading is the one privilege that it gets.
_READS = "-all,+dac_read_search"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only Linux's root becomes another user"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing (util-linux)"),
]


@pytest.fixture
def home(folder: Path) -> Iterator[Path]:
    """A folder of the other user."""
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    os.chown(folder, 0, 0)


@pytest.mark.parametrize("tests", ["tests/engine/test_confinement.py", "tests/e2e/test_sandbox.py"])
def test_engines_of_another_user_are_confined_alike(home: Path, tests: str) -> None:
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps={_READS}"]
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={home}/base"]
    # Options for the whole run are not for this one: the other user may not write the files that they name.
    own = dict.fromkeys(["HOME", "TMPDIR", "XDG_RUNTIME_DIR"], str(home))
    environment = {**os.environ, **own, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*become, f"--ambient-caps={_READS}", f"--bounding-set={_READS}", *run, tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
