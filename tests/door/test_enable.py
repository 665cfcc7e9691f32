"""`carctl http enable`: a user with nothing but curl, a shell and the printed lines."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.carctl.command import carctl
from tests.door.support import BIN
from tests.e2e.support import Daemon
from tests.pace import HANG_S
from tests.ports import free_port

CURL_DISTRUSTS = 60

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None or sys.platform == "darwin",
    reason="the lines need curl, and launchd would run the test's door for the user",
)


def env_of(folder: Path, daemon: Path) -> dict[str, str]:
    """Return the environment of a user without a service manager, who starts the door by hand."""
    return {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_RUNTIME_DIR": str(folder),
        "HOME": str(folder),
        "CAR_SOCKET": str(daemon),
    }


@contextmanager
def started(env: dict[str, str]) -> Iterator[None]:
    """Run the door that is configured."""
    with subprocess.Popen([str(BIN / "card-http")], env={"PATH": str(BIN), **env}, stderr=subprocess.PIPE) as door:
        assert door.stderr is not None
        try:
            assert b"listening on" in door.stderr.readline()
            yield
        finally:
            door.terminate()


def test_the_three_printed_lines_work_and_status_says_that_the_door_answers(served: Daemon, folder: Path) -> None:
    env = env_of(folder, served.path)
    port = free_port()
    enabled = carctl("http", "enable", "--port", str(port), env=env)
    assert enabled.returncode == 0, enabled.stderr
    assert tomllib.loads((folder / "config/car/card.toml").read_text())["http"]["listen"] == f"127.0.0.1:{port}"
    assert b"by hand: " in enabled.stdout
    lines = enabled.stdout.decode().splitlines()[-3:]
    with started(env):
        models, chat, by_socket = (json.loads(subprocess.check_output(["/bin/sh", "-c", line])) for line in lines)
        status = carctl("http", "status", env=env)
    assert models["data"][0]["id"] == by_socket["data"][0]["id"] == "guide"
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert (status.returncode, status.stdout.count(b": answers\n")) == (0, 2)
    # Once configured, the port stays.
    assert f":{port}/v1/models".encode() in carctl("http", "enable", env=env).stdout


OWN = "127.0.0.1"  # tests are reached from this machine alone


def printed(env: dict[str, str], *flags: str) -> list[str]:
    """Return what `carctl http enable` prints."""
    done = carctl("http", "enable", "--port", str(free_port()), *flags, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def by_line(line: str, env: dict[str, str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a printed line as a person at another machine would, with the key in KEY."""
    key = carctl("http", "key", env=env).stdout.decode().strip()
    # Programs of this environment come first, because the line names `python`.
    path = f"{BIN}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": path, "HOME": env["HOME"], "KEY": key},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture
def lan(served: Daemon, folder: Path) -> tuple[dict[str, str], list[str]]:
    """A user's environment, and the lines that `--lan` printed."""
    pytest.importorskip("cryptography", reason="makes the certificate")
    env = env_of(folder, served.path)
    return env, printed(env, f"--lan={OWN}:{free_port()}", "--name", "card.example")


def starting(lines: list[str], words: str) -> str:
    """Return the printed line that begins with words."""
    return next(line for line in lines if line.startswith(words))


def other_certificate(env: dict[str, str], line: str) -> str:
    """Return a line that trusts the certificate of another machine."""
    other = Path(env["HOME"]) / "other.pem"
    making = pytest.importorskip("car_client.carctl.http.self_signed")
    making.ensure_certificate(other, other.with_name("other-key.pem"), ["card.example"], [])
    return line.replace(str(Path(env["XDG_CONFIG_HOME"]) / "car/http-certificate.pem"), str(other))


def test_other_machines_get_lines_for_curl_and_python_that_work_and_refuse_another_certificate(
    lan: tuple[dict[str, str], list[str]],
) -> None:
    env, lines = lan
    pytest.importorskip("openai")
    with started(env):
        curl, python = starting(lines, "curl --cacert"), starting(lines, "SSL_CERT_FILE=")
        assert json.loads(by_line(curl, env).stdout)["data"][0]["id"] == "guide"
        assert "id='guide'" in (done := by_line(python, env)).stdout, done.stderr
        assert by_line(other_certificate(env, curl), env).returncode == CURL_DISTRUSTS
        assert "CERTIFICATE_VERIFY_FAILED" in by_line(other_certificate(env, python), env).stderr
        status = carctl("http", "status", env=env).stdout.decode()
    shown = next(line.strip() for line in lines if line.count(":") == 31 and line.startswith("  "))
    assert status.count(": answers\n") == 3
    assert shown in status
    text = f"openssl x509 -noout -fingerprint -sha256 -in {env['XDG_CONFIG_HOME']}/car/http-certificate.pem"
    if shutil.which("openssl"):
        assert shown in by_line(text, env).stdout


@pytest.mark.slow
def test_other_machines_get_a_line_for_node_that_works_and_refuses_another_certificate(
    lan: tuple[dict[str, str], list[str]], modules: Path
) -> None:
    env, lines = lan
    node = starting(lines, "NODE_EXTRA_CA_CERTS=")
    with started(env):
        assert "id: 'guide'" in (done := by_line(node, env, modules)).stdout, done.stderr
        refused = by_line(other_certificate(env, node), env, modules)
    assert refused.returncode != 0
    assert "Connection error" in refused.stderr


def test_the_network_is_added_once_kept_by_a_second_call_and_removed_again(folder: Path, served: Daemon) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate")
    env = env_of(folder, served.path)
    file, certificate = folder / "config/car/card.toml", folder / "config/car/http-certificate.pem"

    def table() -> Any:
        return tomllib.loads(file.read_text())["http"]

    port = free_port()
    printed(env, f"--lan={OWN}:{port}")
    first, made = table(), certificate.read_bytes()
    assert first["listen"][1] == f"https://{OWN}:{port}"
    assert len(first["hosts"]) == 2
    assert (folder / "config/car/http-private-key.pem").stat().st_mode & 0o777 == 0o600
    assert carctl("http", "enable", "--lan", env=env).returncode == 0
    assert (table(), certificate.read_bytes()) == (first, made)
    assert carctl("http", "enable", "--no-lan", env=env).returncode == 0
    assert table()["listen"] == first["listen"][0]


def test_without_keys_the_network_is_refused_and_the_configuration_stays(folder: Path, served: Daemon) -> None:
    env = env_of(folder, served.path)
    file = folder / "config/car/card.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[http]\nno_key = true\n")
    done = carctl("http", "enable", "--lan", env=env)
    assert (done.returncode, b"other machines need keys" in done.stderr) == (1, True)
    assert file.read_text() == "[http]\nno_key = true\n"


def test_an_address_that_would_take_the_port_of_this_machines_apps_is_refused(folder: Path, served: Daemon) -> None:
    env, port = env_of(folder, served.path), free_port()
    same = [[f"--lan={host}:{port}", "--port", str(port)] for host in ("0.0.0.0", "127.0.0.1")]
    for wrong in (*same, ["--lan", "--no-lan"]):
        done = carctl("http", "enable", *wrong, env=env)
        assert (done.returncode, (folder / "config/car/card.toml").exists()) == (2, False), done.stderr


def test_the_link_and_the_lines_carry_the_users_own_key_wherever_it_is_in_the_file(
    folder: Path, served: Daemon
) -> None:
    env = env_of(folder, served.path)
    for name in ("editor", "default"):
        assert carctl("http", "key", name, env=env).returncode == 0
    enabled = carctl("http", "enable", "--port", str(free_port()), env=env).stdout.decode()
    assert '"default"' in enabled
    own = carctl("http", "key", env=env).stdout.decode().strip()
    assert carctl("page", env=env).stdout.decode().strip().endswith(f"#key={own}")


def test_the_machines_door_is_never_taken_for_the_users_own(folder: Path, served: Daemon) -> None:
    env = env_of(folder, served.path)
    for command in (["http", "key"], ["http", "status"], ["http", "enable"], ["page"]):
        done = carctl("--system", *command, env=env)
        assert (done.returncode, b"service" in done.stderr, done.stdout) == (2, True, b""), done.stderr
    assert not (folder / "config/car").exists()


def test_a_private_key_of_ones_own_without_a_certificate_is_refused_and_stays(folder: Path, served: Daemon) -> None:
    pytest.importorskip("car_client.carctl.http.self_signed")
    env, file, key = env_of(folder, served.path), folder / "config/car/card.toml", folder / "my.key"
    key.write_text("mine")
    done = carctl("http", "enable", "--lan", "--private-key", str(key), env=env)
    assert (done.returncode, b"give --certificate" in done.stderr, file.exists()) == (2, True, False)
    file.parent.mkdir(parents=True)
    file.write_text(f'[http]\nprivate_key = "{key}"\n')
    done = carctl("http", "enable", "--lan", env=env)
    assert (done.returncode, b"give --certificate" in done.stderr, key.read_text()) == (2, True, "mine")


def test_a_certificate_of_ones_own_is_used_and_never_replaced(
    lan: tuple[dict[str, str], list[str]], folder: Path
) -> None:
    env, _ = lan
    own, key = folder / "own.pem", folder / "own-key.pem"
    making = pytest.importorskip("car_client.carctl.http.self_signed")
    making.ensure_certificate(own, key, ["own.example"], [])
    before, config = own.read_bytes(), (folder / "config/car/card.toml").read_bytes()
    missing = carctl("http", "enable", "--certificate", str(own), "--private-key", str(folder / "none"), env=env)
    assert (missing.returncode, b"cannot read" in missing.stderr) == (1, True)
    assert (folder / "config/car/card.toml").read_bytes() == config
    lines = printed(env, "--certificate", str(own), "--private-key", str(key), "--name", "own.example")
    assert own.read_bytes() == before
    assert str(own) in starting(lines, "curl --cacert")
    reach = starting(lines, "Other machines reach the door by ")
    assert (f"https://{OWN}:" in reach, "https://own.example:" in reach, "card.example" in reach) == (True, True, False)
    refused = starting(lines, "They refuse the certificate at https://card.example:")
    assert refused.endswith("certificate is not valid for 'card.example'): get one that has it.")
