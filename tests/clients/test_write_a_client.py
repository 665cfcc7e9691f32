"""The programs of examples/ in other languages, with the tool chains of this machine."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, ROOT, Daemon, running
from tests.pace import HANG_S

ASKED = KNOWN[0]
# For machines without OpenBSD's netcat: standard input to the socket, its end, and the socket to standard output.
NETCAT = f"""#!{sys.executable}
import shutil, socket, sys
assert sys.argv[1] == "-UN"
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[2])
    connection.sendall(sys.stdin.buffer.read())
    connection.shutdown(socket.SHUT_WR)
    shutil.copyfileobj(connection.makefile("rb", buffering=0), sys.stdout.buffer)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the built-in model."""
    with running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon.ready()


def needed(tool: str) -> str:
    """Return the path of a tool; skips the test where it is not installed."""
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path


def run(daemon: Daemon, *command: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with the daemon's socket."""
    env = {**os.environ, "CAR_SOCKET": str(daemon.path), "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)


def check(daemon: Daemon, *command: str | Path, path: str = "") -> None:
    """The program prints the known answer and its length; a refusal ends it with its code."""
    done = run(daemon, *command, ASKED.question, path=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{re.escape(ASKED.answer)}\n\d+ tokens\n", done.stdout)
    refused = run(daemon, *command, "word " * 9_000, path=path)
    assert refused.returncode != 0
    assert "error 1006" in refused.stderr


def test_the_shell_program_prints_an_answer_and_an_error(daemon: Daemon, tmp_path: Path) -> None:
    needed("jq")
    netcat = tmp_path / "nc"
    netcat.write_text(NETCAT)
    netcat.chmod(netcat.stat().st_mode | stat.S_IXUSR)
    check(daemon, "bash", ROOT / "examples" / "ask.sh", path="" if shutil.which("nc") else str(tmp_path))


def test_the_go_program_prints_an_answer_and_an_error(daemon: Daemon, tmp_path: Path) -> None:
    source = ROOT / "examples" / "ask.go"
    binary = tmp_path / "ask"
    built = subprocess.run([needed("go"), "build", "-o", binary, source], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert subprocess.run(["gofmt", "-l", source], capture_output=True, check=True).stdout == b""
    check(daemon, binary)


def test_the_rust_program_prints_an_answer_and_an_error(daemon: Daemon, tmp_path: Path) -> None:
    cargo = needed("cargo")
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / "examples" / "ask.rs", tmp_path / "src" / "main.rs")
    (tmp_path / "Cargo.toml").write_text(
        '[package]\nname = "ask"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nserde_json = "1"\n'
    )
    if subprocess.run([cargo, "fetch"], cwd=tmp_path, capture_output=True, timeout=HANG_S, check=False).returncode:
        pytest.skip("cargo cannot fetch serde_json: is there a registry?")
    built = subprocess.run(
        [cargo, "build", "--offline"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr
    check(daemon, tmp_path / "target" / "debug" / "ask")
