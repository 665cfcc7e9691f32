"""`carctl cluster status` and the doctor's lines about a cluster."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from car_client.carctl.cluster.head import NotTaken
from car_client.carctl.doctor import daemon_checks
from car_client.carctl.doctor.daemon_checks import check_machine, configured
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import status

UP = {"address": "10.0.0.2", "alive": True, "cpus": 16.0, "gpus": 1.0, "engines": 2}
SKEWED = UP | {"address": "10.0.0.3", "avoided_s": 48.2, "engines": 0, "reason": "card 0.1.0 is installed there"}
DOWN = UP | {"address": "10.0.0.4", "alive": False, "engines": 0}
CLUSTER = {"address": "10.0.0.1:6379", "placer_pid": 77, "ray": "2.60.0", "nodes": [UP, SKEWED, DOWN]}
VERSIONS = {"ray": "2.60.0", "cryptography": "44.0.1"}


def clustered(daemon: FakeDaemon, cluster: dict[str, Any] | None = None, **model: Any) -> None:
    sample = status(str(daemon.path)) | {"cluster": cluster or CLUSTER}
    sample["models"][0] |= {"place": "ray", "replicas": 8, "up": 5} | model
    daemon.answers["daemon/status"] = sample


def lines(daemon: FakeDaemon) -> dict[str, list[str]]:
    """Return the levels and facts of the daemon's checks by subject."""
    found: dict[str, list[str]] = {}
    for result in daemon_checks.check_daemon(daemon.path, ()):
        found.setdefault(result.subject, []).append(f"{result.level} {result.facts}")
    return found


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a port that takes connections."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def machine(table: dict[str, Any], installed: dict[str, str] = VERSIONS, **env: str) -> list[str]:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    def takes(address: str, environment: Mapping[str, str]) -> None:
        if Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text() != "secret":
            raise NotTaken(f"the token is not that of {address}")

    return [result.line() for result in check_machine(table, env, version, takes)]


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o600)
    return str(file)


def test_the_machines_and_the_placed_models_are_shown(daemon: FakeDaemon) -> None:
    clustered(daemon, waiting_for="no node has a CPU left")
    done = carctl("--socket", daemon.path, "cluster", "status")
    name = status("x")["models"][0]["name"]
    assert (done.returncode, done.stdout.decode().splitlines()) == (
        0,
        [
            "cluster at 10.0.0.1:6379: Ray 2.60.0, 2 of 3 nodes up, placer 77",
            "node      cpus  gpus  engines  state",
            "10.0.0.2  16    1     2        up",
            "10.0.0.3  16    1     0        avoided for 48 s",
            "10.0.0.4  16    1     0        down",
            "10.0.0.3: card 0.1.0 is installed there",
            f"{name}: ready, 5 of 8 engines; waits for a place: no node has a CPU left",
        ],
    )


def test_a_cluster_that_is_not_connected_is_a_failure_with_its_reason(daemon: FakeDaemon) -> None:
    clustered(daemon, {"address": "h:1", "placer_pid": None, "ray": None, "reason": "the token is wrong"})
    done = carctl("--socket", daemon.path, "cluster", "status")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, b"cluster at h:1: not connected: the token is wrong")


@pytest.mark.parametrize(("pid", "text"), [(None, b"no engine has needed a place yet"), (7, b"connecting")])
def test_a_placer_without_a_connection_yet_is_no_failure(daemon: FakeDaemon, pid: int | None, text: bytes) -> None:
    clustered(daemon, {"address": "h:1", "placer_pid": pid, "ray": None})
    done = carctl("--socket", daemon.path, "cluster", "status")
    assert (done.returncode, text in done.stdout) == (0, True)


def test_a_daemon_without_a_cluster_says_what_to_configure(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "cluster", "status")
    assert (done.returncode, b"[cluster]" in done.stderr) == (2, True)


def test_what_a_node_reports_cannot_drive_the_terminal(daemon: FakeDaemon) -> None:
    clustered(daemon, CLUSTER | {"nodes": [SKEWED | {"address": "\x1b[2J", "reason": "a\nb\x1b"}]})
    assert b"\x1b" not in carctl("--socket", daemon.path, "cluster", "status").stdout


def test_the_doctor_reports_nodes_that_get_no_engine_and_engines_without_a_place(daemon: FakeDaemon) -> None:
    clustered(daemon, waiting_for="no node has a CPU left")
    found = lines(daemon)
    assert found["cluster"] == ["ok 10.0.0.1:6379: Ray 2.60.0, 2 of 3 nodes up, placer 77"]
    assert found["node"] == [
        "warn 10.0.0.3 avoided for 48 s: card 0.1.0 is installed there",
        "warn 10.0.0.4 is down",
    ]
    assert [line.partition(": ")[2] for line in found["place"]] == ["5 of 8 engines: no node has a CPU left"]


def test_the_doctor_fails_where_the_placer_is_not_connected(daemon: FakeDaemon) -> None:
    clustered(daemon, {"address": "h:1", "placer_pid": None, "ray": None, "reason": "the token is wrong"})
    assert lines(daemon)["cluster"] == ["fail h:1: not connected: the token is wrong"]


@pytest.mark.parametrize(("reason", "advised"), [({}, True), ({"reason": "the token is wrong"}, False)])
def test_more_nodes_are_advised_where_the_cluster_is_connected(
    daemon: FakeDaemon, reason: dict[str, str], advised: bool
) -> None:
    clustered(daemon, CLUSTER | reason, waiting_for="none")
    (place,) = (result for result in daemon_checks.check_daemon(daemon.path, ()) if result.subject == "place")
    assert ("add a node" in place.advice) is advised


def test_without_a_cluster_the_doctor_has_no_line_about_one(daemon: FakeDaemon, tmp_path: Path) -> None:
    assert not {"cluster", "node", "place"} & set(lines(daemon))
    assert configured(tmp_path / "card.toml") is None


def test_a_machine_with_packages_token_and_head_is_well(token: str, head: str) -> None:
    assert machine({"address": head, "token": token}) == [
        "ok   packages    ray 2.60.0, cryptography 44.0.1",
        f"ok   token       {token}, mode 600",
        f"ok   head        {head} answers",
        f"ok   head        {head} takes this token, and no client without it",
    ]


def test_the_head_is_asked_about_the_token_where_all_else_is_well(token: str, head: str) -> None:
    Path(token).write_text("another")
    assert machine({"address": head, "token": token})[-1] == f"fail head        the token is not that of {head}"
    assert machine({"address": head, "token": token}, installed={})[-1] == f"ok   head        {head} answers"


@pytest.mark.parametrize("missing", ["ray", "cryptography"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing: str, token: str) -> None:
    installed = {name: version for name, version in VERSIONS.items() if name != missing}
    first = machine({"address": "auto", "token": token}, installed)[0]
    assert first == (f"fail packages    the package {missing} is not installed; pip install 'card-daemon[cluster]'")


def test_a_ray_that_is_too_old_is_named(token: str) -> None:
    assert "Ray 2.9.0 is older than 2.60" in machine({"address": "auto"}, VERSIONS | {"ray": "2.9.0"})[0]


def test_a_token_that_others_may_read_is_a_failure(token: str) -> None:
    Path(token).chmod(0o640)
    line = machine({"address": "auto"}, RAY_AUTH_TOKEN_PATH=token)[1]
    assert line == f"fail token       other users may use {token} (mode 640): run chmod 600 on it"


def test_a_head_that_does_not_answer_is_a_failure(token: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    line = machine({"address": address, "token": token})[-1]
    assert line.startswith(f"fail head        {address}: connection refused: start Ray on the head")


def test_a_head_beyond_this_machine_without_tls_is_a_warning(token: str) -> None:
    with closing(socket.create_server(("0.0.0.0", 0))) as listener:
        address = f"0.0.0.0:{listener.getsockname()[1]}"
        plain = machine({"address": address, "token": token})
        encrypted = machine({"address": address, "token": token}, RAY_USE_TLS="1")
    assert [line.split()[0] for line in plain[2:]] == ["ok", "warn", "ok"]
    assert [line.split()[0] for line in encrypted[2:]] == ["ok", "ok"]


def test_the_doctor_reads_the_table_of_the_configuration(daemon: FakeDaemon, token: str, tmp_path: Path) -> None:
    config = tmp_path / "car" / "card.toml"
    config.parent.mkdir()
    config.write_text(f'[cluster]\naddress = "127.0.0.1:1"\ntoken = "{token}"\n')
    done = carctl("--socket", daemon.path, "doctor", env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert f"ok   token       {token}, mode 600".encode() in done.stdout
