"""A port that was another server's: its programs send what they sent before, and pages of other sites get nothing."""

import http.client
import json
import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from car_client.door.humans import humans
from car_http.command import run
from car_http.guard import Rules
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import BIN, OfflineDoor
from tests.e2e.support import conversation
from tests.pace import HANG_S
from tests.ports import free_port

BODY = json.dumps({"model": "guide", "messages": conversation("Hi"), "stream": False}).encode()
ADOPTED = Rules(no_key=True, adopted=True)
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}


@contextmanager
def adopted_port(daemon: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """Run a door on an adopted port; yields its process, the port and its first lines."""
    port = free_port()
    flags = ["--adopted", f"127.0.0.1:{port}", "--socket", str(daemon)]
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_RUNTIME_DIR": str(folder)}
    with subprocess.Popen([str(BIN / "card-http"), *flags], env=env, stderr=subprocess.PIPE) as door:
        assert door.stderr is not None
        try:
            yield door, port, (door.stderr.readline() + door.stderr.readline()).decode()
        finally:
            door.terminate()
            door.wait(HANG_S)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (FORM, 200),  # `curl -d`, as all examples of Ollama's have it
        (JSON | {"authorization": "Bearer ollama"}, 200),
        (JSON | {"origin": "app://obsidian.md"}, 200),
        (JSON | {"origin": "http://localhost:3000"}, 200),
        (JSON | {"origin": "https://evil.example"}, 403),
        (JSON | {"origin": "http://localhost.evil.example"}, 403),
        (JSON | {"origin": "http://localhost@evil.example"}, 403),
        (JSON | {"origin": "chrome-extension://abc"}, 403),
        (JSON | {"origin": "null"}, 403),
        (JSON | {"host": "evil.example:11434"}, 403),
        (FORM | {"origin": "http://localhost:3000"}, 415),
        (FORM | {"sec-fetch-site": "cross-site"}, 415),
        (JSON | {"content-encoding": "gzip"}, 415),
    ],
)
async def test_programs_of_this_machine_are_answered_without_a_key_and_other_sites_are_not(
    fake: FakeDaemon, folder: Path, headers: dict[str, str], expected: int
) -> None:
    async with OfflineDoor(fake.path, folder / "keys", ADOPTED) as door:
        given = {"host": "localhost:11434"} | headers
        answer = await door.request("POST", "/api/chat", BODY, given, unix=False)
    assert answer.status == expected


def test_an_adopted_port_makes_no_keys_and_no_socket_and_says_loudly_whom_it_serves(
    fake: FakeDaemon, folder: Path
) -> None:
    with adopted_port(fake.path, folder) as (_, port, said):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        connection.request("POST", "/v1/chat/completions", BODY.replace(b"guide", b"gpt-4o"), FORM)
        answered = json.loads(connection.getresponse().read())
        connection.close()
    assert answered["model"] == "guide"
    assert "every program and user of this machine can send requests as you" in said
    assert {each.name for each in folder.iterdir()} == {"card.sock"}


def test_at_its_end_accepted_answers_are_whole_the_port_is_free_at_once_and_endless_streams_end(
    fake: FakeDaemon, folder: Path
) -> None:
    fake.silent_after = 1
    with adopted_port(fake.path, folder) as (door, port, _):
        endless, accepted = (http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S) for _ in range(2))
        endless.request("GET", "/models/sse")
        watched = endless.getresponse()
        watched.readline()
        accepted.request("POST", "/api/chat", BODY.replace(b"false", b"true"), FORM)
        streamed = accepted.getresponse()
        first = streamed.readline()
        door.send_signal(signal.SIGTERM)
        watched.read()  # raises IncompleteRead for a stream that is cut
        with socket.socket() as successor:
            successor.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            successor.bind(("127.0.0.1", port))
        assert door.poll() is None
        fake.finish()
        lines = [json.loads(line) for line in (first, *streamed.read().splitlines())]
        assert door.wait(HANG_S) == 0
        endless.close()
        accepted.close()
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def user(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", shell))


def test_people_have_an_id_of_people_and_a_shell() -> None:
    users = [user("root", 0), user("ollama", 999, "/bin/false"), user("anna", 1000), user("nobody", 65534)]
    assert humans([*users, user("daemon", 1001, "/usr/sbin/nologin"), user("zoe", 501)]) == ["anna", "zoe"]
    assert humans() == humans(pwd.getpwall())


def test_a_port_without_keys_is_refused_on_a_machine_of_several_people(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    config = ["--config", str(folder / "card.toml")]
    (folder / "card.toml").touch()
    assert run(["--adopted", f"127.0.0.1:{free_port()}", *config], lambda: ["anna", "zoe"]) == 78
    assert "here are anna, zoe" in capsys.readouterr().err
    assert run(["--adopted", "unix:/x", *config], lambda: ["anna"]) == 78
