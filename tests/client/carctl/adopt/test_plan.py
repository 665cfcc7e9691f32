"""What an adoption does, decided from what was read; and the process at a port, read from the system."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from car_client.carctl.adopt.candidates import Candidate
from car_client.carctl.adopt.listening import Listening, listening, owed, owed_of, unit_of
from car_client.carctl.adopt.plan import CannotAdopt, ServerCommands, Snapshot, decide
from tests.pace import HANG_S
from tests.ports import free_port

A = Candidate("a:latest", {"path": "/a"}, ("a",))
COMMAND = ("/usr/bin/ollama", "serve")
MINE = Listening(1000, 7, COMMAND)
SEEN = Snapshot(
    title="Ollama",
    port=11434,
    uid=1000,
    people=["anna"],
    configured={},
    candidates=[A],
    running=MINE,
    recognized=True,
)


def seen(**members: Any) -> Snapshot:
    return replace(SEEN, **members)


def test_the_users_own_process_is_ended_and_its_command_line_goes_back() -> None:
    plan = decide(SEEN)
    assert plan.tables == {"a:latest": {"path": "/a", "aliases": ["a"]}}
    assert (plan.way, plan.by_hand, plan.notes) == (ServerCommands((), COMMAND), "", [])
    assert decide(seen(switch=("/lms", "server"))).way == ServerCommands(
        ("/lms", "server", "stop"), ("/lms", "server", "start")
    )


def test_a_unit_of_the_user_stays_enabled_or_not_as_it_was() -> None:
    running = replace(MINE, unit="ollama.service")
    user = ("systemctl", "--user")
    assert decide(seen(running=running)).way == ServerCommands(
        (*user, "stop", running.unit), (*user, "start", running.unit)
    )
    enabled = decide(seen(running=running, enabled=True)).way
    assert enabled == ServerCommands(
        (*user, "disable", "--now", running.unit), (*user, "enable", "--now", running.unit)
    )


@pytest.mark.parametrize(
    ("running", "unit", "command"),
    [
        (Listening(999), "ollama.service", "sudo systemctl disable --now ollama.service"),
        (Listening(999, 7, COMMAND), "", "sudo kill 7"),
        (
            Listening(1000, 7, COMMAND, unit="mine.service", system=True),
            "",
            "sudo systemctl disable --now mine.service",
        ),
    ],
)
def test_a_service_that_is_not_the_users_own_is_named_with_the_command_that_stops_it(
    running: Listening, unit: str, command: str
) -> None:
    plan = decide(seen(running=running, unit=unit))
    assert (plan.by_hand, plan.way) == (command, None)
    root = decide(seen(running=replace(running, unit="o.service", system=True), uid=0)).way
    assert root == ServerCommands(("systemctl", "stop", "o.service"), ("systemctl", "start", "o.service"))


def test_a_free_port_is_adopted_too_and_a_stopped_service_is_named_for_the_way_back() -> None:
    plan = decide(seen(running=None, recognized=False, unit="ollama.service"))
    assert (plan.way, plan.back_by_hand) == (None, "sudo systemctl enable --now ollama.service")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"people": ["anna", "zoe"]}, "here are anna, zoe"),
        ({"recognized": False}, "another program than Ollama: /usr/bin/ollama serve"),
        ({"candidates": []}, "there is no model of Ollama"),
        ({"candidates": [Candidate("b", why_not="its blob is away")]}, "b stays: its blob is away"),
    ],
)
def test_an_adoption_that_would_do_harm_is_refused_with_its_reason(members: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotAdopt, match=why):
        decide(seen(**members))


def test_names_that_card_has_already_stay_and_aliases_of_other_models_are_left_out() -> None:
    configured = {"a:latest": {"path": "/a"}, "b": {"path": "/other"}, "c": {"path": "/c", "aliases": ["d"]}}
    candidates = [A, Candidate("b", {"path": "/b"}), Candidate("d", {"path": "/d"}), Candidate("guide", {"path": "/g"})]
    candidates += [Candidate("e", {"path": "/e"}, ("c", "f", "d")), Candidate("f", {"path": "/f"})]
    plan = decide(seen(configured=configured, candidates=candidates))
    assert plan.tables == {"e": {"path": "/e"}, "f": {"path": "/f"}}
    assert [note.partition(" ")[0] for note in plan.notes] == ["b", "d", "guide"]


def test_a_port_that_other_machines_reached_is_said() -> None:
    assert "other machines" in decide(seen(running=replace(MINE, elsewhere=True))).notes[0]


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/ollama.service", ("ollama.service", False)),
        ("/system.slice/ollama.service", ("ollama.service", True)),
        ("/user.slice/user-1000.slice/session-2.scope", ("", False)),
        ("/user.slice/user-1000.slice/user@1000.service", ("", False)),
        ("", ("", False)),
    ],
)
def test_a_control_group_names_the_unit_of_a_process(group: str, unit: tuple[str, bool]) -> None:
    assert unit_of(group) == unit


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_at_a_port_is_found_with_its_variables_and_nothing_else_of_its_environment() -> None:
    port = free_port()
    assert listening(port, ()) is None
    program = f"import socket; s = socket.create_server(('127.0.0.1', {port})); print(flush=True); s.accept()"
    env = {**os.environ, "OLLAMA_MODELS": "/m", "SECRET": "s"}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = listening(port, ("OLLAMA_",))
        process.kill()
    assert found is not None
    assert (found.uid, found.pid, found.arguments) == (os.getuid(), process.pid, (sys.executable, "-c", program))
    assert (found.env, found.folder, found.elsewhere) == ({"OLLAMA_MODELS": "/m"}, str(Path.cwd()), False)
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        anywhere = listening(everywhere.getsockname()[1], ())
    assert anywhere is not None
    assert anywhere.elsewhere


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_at_work_is_found_though_it_closes_a_descriptor_meanwhile(tmp_path: Path) -> None:
    descriptors = tmp_path / "7" / "fd"
    descriptors.mkdir(parents=True)
    (tmp_path / "net").mkdir()
    row = "0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 99"
    (tmp_path / "net" / "tcp").write_text(f"sl local_address\n{row}\n")
    (descriptors / "4").symlink_to("socket:[99]")
    for closed in ("3", "5"):
        (descriptors / closed).touch()  # no link to read
    found = listening(0x2CAA, (), tmp_path)
    assert found is not None
    assert (found.uid, found.pid) == (1000, 7)


SS = "0 0 127.0.0.1:1 127.0.0.1:2\n\t bbr lastsnd:{} lastrcv:{} lastack:9 minrtt:1\n"


def test_a_connection_owes_an_answer_if_bytes_came_in_last_or_went_out_just_now() -> None:
    waiting, streaming, idle = SS.format(9000, 8000), SS.format(20, 9000), SS.format(5000, 9000)
    first = SS.format(9000, "9000 bytes_received:6")
    begun = "0 0 127.0.0.1:1 127.0.0.1:2\n\t bbr minrtt:1\n"  # figures of 0 are left out
    assert [owed_of(text) for text in (waiting, streaming, first, begun, idle, "")] == [1, 1, 1, 1, 0, 0]
    assert owed_of(waiting + idle + streaming) == 2


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss shows when bytes went over a connection")
def test_a_request_that_is_not_answered_is_owed_until_its_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert owed(port) == 0
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            client.sendall(b"POST")
            assert owed(port) == 1
            accepted.close()
        deadline = time.monotonic() + HANG_S
        while owed(port):
            assert time.monotonic() < deadline
