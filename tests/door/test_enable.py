"""`carctl http enable`: a user with nothing but curl, a shell and the printed lines."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.client.carctl.command import carctl
from tests.door.support import BIN, free_port
from tests.e2e.support import Daemon

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None or sys.platform == "darwin",
    reason="the lines need curl, and launchd would run the test's door for the user",
)


def test_the_three_printed_lines_work_and_status_says_that_the_door_answers(served: Daemon, folder: Path) -> None:
    # Without a runtime directory of its own the user has no service manager, and starts the door by hand.
    env = {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_RUNTIME_DIR": str(folder),
        "HOME": str(folder),
        "CAR_SOCKET": str(served.path),
    }
    port = free_port()
    enabled = carctl("http", "enable", "--port", str(port), env=env)
    assert enabled.returncode == 0, enabled.stderr
    assert tomllib.loads((folder / "config/car/card.toml").read_text())["http"]["listen"] == f"127.0.0.1:{port}"
    assert b"by hand: " in enabled.stdout
    lines = enabled.stdout.decode().splitlines()[-3:]
    with subprocess.Popen([str(BIN / "card-http")], env={"PATH": str(BIN), **env}, stderr=subprocess.PIPE) as door:
        assert door.stderr is not None
        try:
            assert b"listening on" in door.stderr.readline()
            models, chat, by_socket = (json.loads(subprocess.check_output(["/bin/sh", "-c", line])) for line in lines)
            status = carctl("http", "status", env=env)
        finally:
            door.terminate()
    assert models["data"][0]["id"] == by_socket["data"][0]["id"] == "guide"
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert (status.returncode, status.stdout.count(b": answers\n")) == (0, 2)
    # Once configured, the port stays.
    assert f":{port}/v1/models".encode() in carctl("http", "enable", env=env).stdout
