"""`carctl adopt` as a user runs it: another server's port under load, taken over and given back."""

import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from car_base.guide import PATH
from car_client.client import Client
from car_client.door.humans import humans
from tests.client.carctl.adopt.stand_in import LINES
from tests.client.carctl.adopt.store import OllamaStore, digest_of
from tests.e2e.support import BIN, environment_of
from tests.pace import HANG_S, until
from tests.ports import free_port

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the process at the port is found in /proc"),
    pytest.mark.skipif(len(humans()) > 1, reason="only a machine of one person has ports without keys"),
]
STAND_IN = Path(__file__).parents[1] / "client/carctl/adopt/stand_in.py"
CLIENTS = 8
MINE = "mine:latest"


class User:
    """A user with a home, a store of Ollama, and a server on its port; no service manager."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.port = free_port()
        self.log = folder / "log"
        self.log.touch()
        self.store = OllamaStore(self.home)
        (self.home / ".config").mkdir()
        kept = environment_of(folder)
        moved: dict[str, Path | str] = {
            "HOME": self.home,
            "XDG_CONFIG_HOME": self.home / ".config",
            "XDG_STATE_HOME": folder / "state",
        }
        moved |= {"XDG_RUNTIME_DIR": folder, "OLLAMA_HOST": f"127.0.0.1:{self.port}"}
        self.env = kept | {name: str(value) for name, value in moved.items()}
        command = [sys.executable, str(STAND_IN), str(self.port), str(self.log), *more]
        self.server = subprocess.Popen(command, cwd=folder)

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """Start `carctl adopt ollama` with further words."""
        command = [str(BIN / "carctl"), "adopt", "ollama", "--port", str(self.port), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def adopt(self, *words: str, code: int = 0) -> str:
        """Run `carctl adopt ollama` to its end; return what it printed."""
        with self.begin(*words) as process:
            said, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == code, said
        return said

    def completed(self) -> int:
        """Return how many requests card has answered."""
        with Client(self.folder / "car" / "card.sock") as client:
            return client.status().totals.completed

    def noted(self) -> dict[str, Counter[str]]:
        """Return what the other server accepted and answered, by text."""
        found: dict[str, Counter[str]] = {"accepted": Counter(), "answered": Counter()}
        for line in self.log.read_text().splitlines():
            what, text = line.split(" ", 1)
            found[what][text] += 1
        return found

    def end(self) -> None:
        """End everything that was started for this user."""
        self.begin("--undo").communicate(timeout=HANG_S)
        subprocess.run([str(BIN / "carctl"), "down"], env=self.env, capture_output=True, check=False)
        found = subprocess.run(["lsof", "-t", "-sTCP:LISTEN", f"-iTCP:{self.port}"], capture_output=True, check=False)
        for pid in found.stdout.split():
            os.kill(int(pid), 9)
        self.server.kill()
        self.server.wait()


@contextmanager
def user_with_models(*more: str) -> Iterator[User]:
    """A user whose store has the guide's weights, under names of its own."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        user = User(Path(name), *more)
        user.store.add("mine", PATH, template="{{ .Prompt }}", params={"temperature": 0}, license="MIT")
        try:
            until(lambda: said_by(user.port) == "theirs:latest")
            yield user
        finally:
            user.end()


def said_by(port: int) -> str | None:
    """Return the model that the server at a port lists beside the guide, None if there is no server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    try:
        connection.request("GET", "/api/tags")
        names = [str(each["name"]) for each in json.loads(connection.getresponse().read())["models"]]
        return next(name for name in names if name != "guide:latest")
    except ConnectionError:
        return None
    finally:
        connection.close()


class Whole(NamedTuple):
    """An answer that a client read to its end: the number of its lines, and the model."""

    lines: int
    model: str


def chat(port: int, text: str) -> Whole | None:
    """Return a streamed answer; None if the server did not accept the request. Raises if it was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    body = {"model": "mine", "messages": [{"role": "user", "content": text}], "options": {"num_predict": 8}}
    try:
        connection.request("POST", "/api/chat", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
    except (ConnectionError, http.client.RemoteDisconnected):
        connection.close()
        return None
    with response:
        lines = [json.loads(line) for line in response.read().splitlines()]
    connection.close()
    assert not [line for line in lines if "error" in line], lines
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return Whole(len(lines), lines[-1]["model"])


def status_of(port: int, method: str, path: str, body: Any) -> int:
    """Return the HTTP status of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        response.read()
    connection.close()
    return response.status


class Load:
    """Clients that each stream one answer after the other, and try a request again that was not accepted."""

    def __init__(self, port: int) -> None:
        self.answers: dict[str, list[Whole]] = {}
        self.failures: list[Exception] = []
        self._port = port
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(HANG_S)

    def until_each_has(self, model: str) -> None:
        """Wait until each client got two more answers of a model."""
        before = self._by_client(model)
        until(lambda: self.failures or all(self._by_client(model)[n] > before[n] + 1 for n in range(CLIENTS)))
        assert not self.failures

    def _by_client(self, model: str) -> Counter[int]:
        found = [text for text, answers in list(self.answers.items()) if answers[0].model == model]
        return Counter(int(text.split("-")[0]) for text in found)

    def _run(self, client: int) -> None:
        try:
            for number in itertools.count():
                text, answer = f"{client}-{number}", None
                while answer is None:
                    if (answer := chat(self._port, text)) is None:
                        time.sleep(0.01)  # as clients do that try again
                self.answers.setdefault(text, []).append(answer)
                if self._enough.is_set():
                    return
        except (OSError, http.client.HTTPException, ValueError, AssertionError) as error:
            self.failures.append(error)


def test_under_load_every_accepted_request_is_answered_once_through_adopt_and_undo() -> None:
    with user_with_models() as user:
        with Load(user.port) as load:
            load.until_each_has("theirs")
            assert "LOUD: port" in user.adopt("--yes", "--now")
            load.until_each_has("mine")
            assert "is given back" in user.adopt("--undo")
            load.until_each_has("theirs")
        assert not load.failures
        noted = user.noted()
        theirs = {text for text, (answer,) in load.answers.items() if answer.model == "theirs"}
        cards = load.answers.keys() - theirs
        assert set(noted["accepted"]) == set(noted["answered"]) == theirs
        assert set(noted["accepted"].values()) | set(noted["answered"].values()) == {1}
        assert all(load.answers[text][0].lines == LINES for text in theirs)
        assert user.completed() == len(cards) + 1  # the proof


def test_a_server_that_cuts_its_answers_is_ended_once_it_has_given_them() -> None:
    with user_with_models("cut") as user:
        hold = Path(f"{user.log}.hold")
        hold.touch()
        answers: list[Whole | None] = []
        clients = [threading.Thread(target=lambda: answers.append(chat(user.port, "Hi"))) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        until(lambda: user.noted()["accepted"]["Hi"] == CLIENTS)
        with user.begin("--yes") as adopting:
            assert adopting.stdout is not None
            assert any("waiting for their end" in line for line in adopting.stdout)
            assert adopting.poll() is None
            hold.unlink()
            said, _ = adopting.communicate(timeout=HANG_S)
        assert adopting.returncode == 0, said
        for client in clients:
            client.join(HANG_S)
        assert answers == [Whole(LINES, "theirs")] * CLIENTS
        assert said_by(user.port) == MINE


def test_now_cuts_the_answers_of_a_server_that_holds_their_connections() -> None:
    with user_with_models("twice") as user:
        Path(f"{user.log}.hold").touch()
        answers: list[Whole | None] = []
        clients = [threading.Thread(target=lambda: answers.append(chat(user.port, "Hi"))) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        until(lambda: user.noted()["accepted"]["Hi"] == CLIENTS)
        assert "LOUD: port" in user.adopt("--yes", "--now")
        for client in clients:
            client.join(HANG_S)
        assert answers == [None] * CLIENTS


def test_undo_leaves_every_file_and_setting_as_before_also_beside_changes_of_the_user() -> None:
    with user_with_models() as user:
        before = digest_of(user.home)
        planned = user.adopt("--dry-run")
        assert f"serve {MINE} (also mine) from ~/.ollama/models/blobs/sha256-" in planned
        assert "0 bytes copied" in planned
        assert (digest_of(user.home), said_by(user.port)) == (before, "theirs:latest")
        user.adopt("--yes")
        with Client(user.folder / "car" / "card.sock") as client:
            assert [model.name for model in client.models() if model.default] == [MINE]
        taken = digest_of(user.home)
        assert {name: taken[name] for name in before} == before
        assert taken.keys() - before.keys() == {".config/car", ".config/car/card.toml"}
        assert "is adopted on port" in user.adopt("--yes", code=2)
        user.adopt("--undo")
        assert (digest_of(user.home), said_by(user.port)) == (before, "theirs:latest")
        assert "is not adopted" in user.adopt("--undo", code=2)
        config = user.home / ".config" / "car" / "card.toml"
        config.parent.mkdir()
        config.write_text("# mine\n[queue]\nlimit = 7 # few\n")
        user.adopt("--yes")
        config.write_text(config.read_text() + '\n[http]\nhosts = ["laptop"]\n')
        user.adopt("--undo")
        words = " ".join(config.read_text().split())
        assert words == '# mine [queue] limit = 7 # few [http] hosts = ["laptop"]'


def test_undo_removes_a_configuration_that_it_made_also_if_models_came_and_went_meanwhile() -> None:
    with user_with_models() as user:
        before = digest_of(user.home)
        user.adopt("--yes")
        pirate = {"model": "also", "from": MINE, "system": "You are a pirate.", "stream": False}
        assert status_of(user.port, "POST", "/api/create", pirate) == 200
        assert status_of(user.port, "DELETE", "/api/delete", {"model": "also"}) == 200
        user.adopt("--undo")
        assert digest_of(user.home) == before


def test_a_blob_that_the_other_program_removes_is_an_unloaded_model_with_a_reason() -> None:
    with user_with_models() as user:
        blob = user.store.add("other", PATH, params={"top_p": 0.5})
        user.adopt("--yes")
        place = user.folder / "car" / "card.sock"
        with Client(place) as client:
            client.unload_model(MINE)
            blob.unlink()
            with pytest.raises(AssertionError, match="cannot be read"):
                chat(user.port, "Hi")
            (gone,) = [model for model in client.models() if model.name == MINE]
        assert gone.state == "failed"
        assert "cannot be read" in str(gone.reason)


def test_a_port_with_another_program_is_left_alone() -> None:
    with user_with_models() as user, socket.create_server(("127.0.0.1", 0)) as other:
        before = digest_of(user.home)
        threading.Thread(target=lambda: other.accept()[0].close()).start()
        said = user.adopt("--yes", "--port", str(other.getsockname()[1]), code=1)
        assert "another program than Ollama" in said
        assert digest_of(user.home) == before


def test_an_adoption_whose_proof_fails_leaves_all_as_before() -> None:
    with user_with_models() as user:
        config = user.home / ".config" / "car" / "card.toml"
        config.parent.mkdir()
        config.write_text("[http]\nany_model = 7\n")  # the door refuses it, and the daemon does not read it
        before = digest_of(user.home)
        assert "all is as before" in user.adopt("--yes", code=1)
        assert (digest_of(user.home), said_by(user.port)) == (before, "theirs:latest")
