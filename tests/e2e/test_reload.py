"""`daemon/reload` and SIGHUP: what takes effect at once, and what an invalid file changes."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base.guide import PATH
from tests.e2e.support import BIN, KNOWN, Daemon, configured, endless, greedy, running
from tests.pace import until

FOUR = "[capacity]\nsequences = 4\n"


@pytest.fixture(scope="module")
def configurable() -> Iterator[Daemon]:
    """A daemon with a configuration of its own."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        with running(folder, *configured(folder, FOUR)) as daemon:
            yield daemon.ready()


@pytest.fixture
def file(configurable: Daemon) -> Path:
    """Its configuration file, of four sequences."""
    configured(configurable.path.parent, FOUR)
    return configurable.path.parent / "card.toml"


@pytest.fixture
def served(configurable: Daemon, file: Path) -> Iterator[Daemon]:
    """The daemon, which has read that file."""
    with configurable.connect() as client:
        client.result("daemon/reload")
    yield configurable
    configurable.wait_until_idle()


def logged(daemon: Daemon, event: str) -> list[str]:
    """Return the lines of the log that are about an event."""
    return [line for line in daemon.log.read_text().splitlines() if event in line]


def test_the_limit_of_the_machine_changes_at_once_and_subscribers_are_notified(served: Daemon, file: Path) -> None:
    with served.connect() as client, served.connect() as admin:
        before = client.result("inference/capacity", {"subscribe": True})
        file.write_text("[capacity]\nsequences = 1\n")
        assert admin.result("daemon/reload") == {}
        change = client.receive()["params"]
        assert (before["capacity"], change["capacity"], change["declared"]) == (4, 1, 4)
        assert change["machine"]["limit"] == 1
        assert change["generation"] > before["generation"]
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_raised_limit_starts_what_waited_for_it(served: Daemon, file: Path) -> None:
    with served.connect() as client, served.connect() as admin:
        file.write_text("[capacity]\nsequences = 1\n")
        admin.result("daemon/reload")
        streams = [client.send("infer_stream", endless()) for _ in range(2)]
        client.first_chunk(streams[0])
        assert admin.result("inference/capacity")["queued"] == 1
        file.write_text("[capacity]\nsequences = 2\n")
        admin.result("daemon/reload")
        client.first_chunk(streams[1])


def test_the_bounds_of_the_queue_change_at_once_and_subscribers_are_notified(served: Daemon, file: Path) -> None:
    with served.connect() as client, served.connect() as subscriber:
        before = subscriber.result("inference/capacity", {"subscribe": True})
        file.write_text('[capacity]\nsequences = 4\n[queue]\nlimit = 1\noverflow = "drop_newest"\n')
        client.result("daemon/reload")
        capacity = client.result("inference/capacity")
        assert subscriber.receive()["params"] == capacity
        assert capacity["generation"] > before["generation"]
        assert (capacity["queue_limit"], capacity["limits"]["queue_limit"]) == (1, 1)
        for _ in range(4):
            client.first_chunk(client.send("infer_stream", endless()))
        client.send("infer", endless())
        assert client.reason("infer", endless()) == "overloaded"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[queue]\nlimit = 0\n", "queue.limit"),
        ("[daemon]\nlog_levle = 'info'\n", "daemon.log_levle"),
        ("default_model = 'none'\n", "default_model"),
        ("= broken", "config"),
    ],
)
def test_an_invalid_file_changes_nothing_and_its_key_is_named(served: Daemon, file: Path, text: str, key: str) -> None:
    invalid = len(logged(served, "config.invalid"))
    with served.connect() as client:
        before = client.result("inference/capacity")
        file.write_text(text + "\n[capacity]\nsequences = 1\n")
        error = client.call("daemon/reload")["error"]
        assert (error["code"], error["data"]["param"]) == (-32602, key)
        served.process.send_signal(signal.SIGHUP)
        until(lambda: len(logged(served, "config.invalid")) == invalid + 1)
        client.result("infer", greedy(KNOWN[0]))
        assert client.result("inference/capacity") == before


def test_a_hang_up_signal_reloads(served: Daemon, file: Path) -> None:
    with served.connect() as client:
        client.result("inference/capacity", {"subscribe": True})
        file.write_text("[capacity]\nsequences = 3\n")
        served.process.send_signal(signal.SIGHUP)
        assert client.receive()["params"]["capacity"] == 3


def test_users_are_let_in_and_the_socket_is_shared_at_once(served: Daemon, file: Path) -> None:
    with served.connect() as client:
        for text, mode in (("[daemon]\nadmin_uids = [65534]\n", 0o666), ("", 0o600)):
            file.write_text(text)
            client.result("daemon/reload")
            assert served.path.stat().st_mode & 0o777 == mode


def test_what_needs_another_daemon_is_logged_by_its_key(served: Daemon, file: Path) -> None:
    before = len(logged(served, "config.reloaded"))
    with served.connect() as client:
        file.write_text("[daemon]\nmax_connections = 10\nlog_format = 'json'\n")
        client.result("daemon/reload")
    (line,) = logged(served, "config.reloaded")[before:]
    assert '"needs_restart": ["daemon.max_connections"]' in line


@pytest.mark.slow
def test_a_model_gets_its_new_settings_when_it_is_loaded_next(folder: Path) -> None:
    with running(folder, *configured(folder, FOUR)) as daemon, daemon.ready().connect() as client:
        configured(folder, "[capacity]\nsequences = 2\n")
        client.result("daemon/reload")
        assert client.result("inference/capacity")["declared"] == 4
        daemon.engine().kill()
        client.result("infer", greedy(KNOWN[0]))
        assert client.result("inference/capacity")["declared"] == 2


def test_carctl_reload_says_which_key_is_wrong(served: Daemon, file: Path) -> None:
    def carctl_reload() -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "carctl"), "--socket", str(served.path), "reload"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = carctl_reload()
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text("[queue]\nlimit = 0\n")
    done = carctl_reload()
    assert done.returncode == 1
    assert "queue.limit" in done.stderr


@pytest.mark.parametrize(("text", "code"), [("[queue]\nlimit = 3\n", 0), ("[queue]\nlimit = 0\n", 78)])
def test_a_configuration_can_be_checked_without_a_daemon(folder: Path, text: str, code: int) -> None:
    file = folder / "card.toml"
    file.write_text(text)
    done = subprocess.run(
        [BIN / "card", "--check-config", "--config", file, "--socket", folder / "card.sock"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "queue.limit" in done.stderr) == (code, code != 0)
    assert list(folder.iterdir()) == [file]


def test_a_new_model_is_served_at_once_and_a_removed_one_until_its_last_answer(served: Daemon, file: Path) -> None:
    with served.connect() as client, served.connect() as admin:
        assert client.reason("infer", greedy(KNOWN[0], model="new")) == "model_unavailable"
        file.write_text(FOUR + f'[models.new]\npath = "{PATH}"\nsequences = 1\n')
        admin.result("daemon/reload")
        stream, waiting = (client.send("infer_stream", endless(model="new", max_tokens=300)) for _ in range(2))
        client.first_chunk(stream)
        file.write_text(FOUR)
        admin.result("daemon/reload")
        assert [model["name"] for model in admin.result("models/list")["models"]] == ["guide"]
        assert admin.reason("infer", greedy(KNOWN[0], model="new")) == "model_unavailable"
        assert [model["name"] for model in admin.result("daemon/status")["models"]] == ["guide", "new"]
        assert {client.response(each)["result"]["finish_reason"] for each in (stream, waiting)} == {"length"}
        while len(admin.result("daemon/status")["models"]) > 1:
            pass


def test_another_default_model_takes_over_at_once(served: Daemon, file: Path) -> None:
    other = f'[models.other]\npath = "{PATH}"\nkeep_alive_s = 0.1\n'
    with served.connect() as client, served.connect() as admin:
        client.result("inference/capacity", {"subscribe": True})
        file.write_text(f'default_model = "other"\n{FOUR}{other}')
        admin.result("daemon/reload")
        assert client.receive()["params"]["model"] == "other"
        assert client.result("infer", greedy(KNOWN[0]))["model"] == "other"
        listed = admin.result("models/list")["models"]
        assert [(model["name"], model["default"]) for model in listed] == [("other", True), ("guide", False)]
        file.write_text(FOUR + other)
        admin.result("daemon/reload")
        assert admin.result("infer", greedy(KNOWN[0]))["model"] == "guide"
        while (states := {model["name"]: model["state"] for model in admin.result("models/list")["models"]}) != {
            "guide": "ready",
            "other": "unloaded",
        }:
            assert states["guide"] == "ready"


def test_a_new_default_model_that_cannot_be_loaded_ends_no_daemon(served: Daemon, file: Path) -> None:
    file.write_text(f'default_model = "lost"\n{FOUR}[models.lost]\npath = "/nowhere.gguf"\n')
    with served.connect() as client:
        client.result("daemon/reload")
        assert client.reason("infer", greedy(KNOWN[0])) == "model_unavailable"
        assert client.result("infer", greedy(KNOWN[0], model="guide"))["text"] == KNOWN[0].answer
        file.write_text(FOUR)
        client.result("daemon/reload")
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
