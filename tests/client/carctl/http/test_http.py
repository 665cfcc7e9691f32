"""`carctl http`: keys, state, and the files and commands of the door's service."""

import plistlib
from pathlib import Path

import pytest
from msgspec import structs

from car_client.carctl.http.command import curl_lines
from car_client.carctl.http.machine import own_addresses
from car_client.carctl.http.page import machines_url
from car_client.carctl.http.service import DoorAgent, DoorUnits
from car_client.carctl.service.steps import Steps
from car_client.door.settings import Settings, load_settings
from car_protocol.sockets import Loopback
from tests.client.carctl.command import carctl
from tests.client.carctl.service.test_service import Notes, files

DOOR = Path("/opt/card/bin/card-http")
SOCKET = "systemd/user/card-http.socket"
UNIX, PORT = Path("/tmp/a b/50%/http.sock"), Loopback("127.0.0.1", 8321)


def env(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose files are in a folder."""
    return {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_RUNTIME_DIR": str(folder / "run"), "HOME": str(folder)}


def test_a_key_is_made_once_printed_again_and_removed(tmp_path: Path) -> None:
    made = carctl("http", "key", "laptop", env=env(tmp_path))
    assert made.stdout.startswith(b"card-")
    assert carctl("http", "key", "laptop", env=env(tmp_path)).stdout == made.stdout
    assert carctl("http", "key", env=env(tmp_path)).stdout != made.stdout
    assert carctl("http", "key", "laptop", "--remove", env=env(tmp_path)).stdout == b"removed laptop\n"
    again = carctl("http", "key", "laptop", "--remove", env=env(tmp_path))
    assert (again.returncode, again.stderr) == (2, b"carctl: there is no key 'laptop'; the keys are: default\n")
    assert (tmp_path / "config/car/http-keys").stat().st_mode & 0o777 == 0o600


def test_the_page_of_the_machines_door_has_an_address_that_people_reach(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_text('[http]\nlisten = ["127.0.0.1:8321", "https://0.0.0.0:8322"]\nhosts = ["vm"]\n')
    settings = load_settings(config=tmp_path / "card.toml", env=env(tmp_path))
    assert machines_url(settings) in [f"https://{each}:8322" for each in (*own_addresses("0.0.0.0"), "127.0.0.1")]
    assert machines_url(structs.replace(settings, certificate=tmp_path / "own.pem")) == "https://vm:8322"
    assert machines_url(structs.replace(settings, addresses=settings.ports)) == "http://127.0.0.1:8321"


def test_a_key_with_a_bad_name_is_refused_with_the_letters_that_a_name_has() -> None:
    done = carctl("http", "key", "two words")
    assert done.returncode == 1
    assert b"letters, digits" in done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "99999999"])
def test_a_port_that_does_not_exist_is_refused(port: str) -> None:
    done = carctl("http", "enable", f"--port={port}")
    assert (done.returncode, b"give 1 to 65535" in done.stderr) == (2, True)


def test_status_without_a_door_says_so_names_the_keys_only_and_fails(tmp_path: Path) -> None:
    key = carctl("http", "key", env=env(tmp_path)).stdout.strip()
    done = carctl("http", "status", env=env(tmp_path))
    assert done.returncode == 1
    assert b"http.sock: does not answer" in done.stdout
    assert b"keys: default\n" in done.stdout
    assert key not in done.stdout + done.stderr


def test_status_of_a_configuration_that_cannot_be_used_names_the_setting(tmp_path: Path) -> None:
    config = tmp_path / "config/car/card.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[http]\nlisten = "0.0.0.0:80"\n')
    done = carctl("http", "status", env=env(tmp_path))
    assert (done.returncode, b"http.listen: 0.0.0.0 is not a loopback address" in done.stderr) == (1, True)


def settings(folder: Path, text: str = "") -> Settings:
    """Return the settings of a card.toml with a text."""
    path = folder / "card.toml"
    path.write_text(f"[http]\nlisten = '127.0.0.1:9'\nkeys = '{folder}/my keys'\n{text}")
    return load_settings(config=path, env={"XDG_RUNTIME_DIR": str(folder)})


def test_the_lines_to_try_have_no_key_in_them_and_pass_it_by_standard_input(tmp_path: Path) -> None:
    models, chat, by_socket = curl_lines(settings(tmp_path), "laptop")
    reading = f"""awk '$1 == "laptop" {{print "Authorization: Bearer " $2}}' '{tmp_path}/my keys' | curl -H @- """
    assert models == f"{reading}http://127.0.0.1:9/v1/models"
    assert chat.startswith(f"{reading}http://127.0.0.1:9/v1/chat/completions -H 'Content-Type: application/json' -d ")
    assert by_socket == f"curl --unix-socket {tmp_path}/car/http.sock http://localhost/v1/models"


def test_the_lines_to_try_of_a_door_without_a_key_read_none(tmp_path: Path) -> None:
    models, _, _ = curl_lines(settings(tmp_path, "no_key = true\n"), "default")
    assert models == "curl http://127.0.0.1:9/v1/models"


# The service.


def test_enable_writes_the_units_starts_the_socket_alone_and_twice_changes_nothing(tmp_path: Path) -> None:
    notes = Notes()
    units = DoorUnits(Steps(notes), tmp_path)
    units.enable(DOOR, [UNIX, PORT])
    assert files(tmp_path) == {SOCKET, "systemd/user/card-http.service"}
    assert "ListenStream=/tmp/a b/50%%/http.sock\nListenStream=127.0.0.1:8321\n" in (tmp_path / SOCKET).read_text()
    assert f'ExecStart="{DOOR}" --exit-idle' in (tmp_path / "systemd/user/card-http.service").read_text()
    assert notes.taken() == [
        "systemctl --user daemon-reload",
        "systemctl --user stop card-http.service card-http.socket",
        "systemctl --user enable --now card-http.socket",
    ]
    units.enable(DOOR, [UNIX, PORT])
    assert notes.taken() == ["systemctl --user enable --now card-http.socket"]


def test_a_new_certificate_stops_the_door_that_shows_the_old_one(tmp_path: Path) -> None:
    notes = Notes()
    units = DoorUnits(Steps(notes), tmp_path)
    units.enable(DOOR, [PORT], renewed=True)
    notes.taken()
    units.enable(DOOR, [PORT], renewed=True)
    assert notes.taken() == [
        "systemctl --user stop card-http.service",
        "systemctl --user enable --now card-http.socket",
    ]


def test_another_port_stops_the_service_because_only_then_its_socket_takes_it(tmp_path: Path) -> None:
    notes = Notes()
    DoorUnits(Steps(notes), tmp_path).enable(DOOR, [PORT])
    notes.taken()
    DoorUnits(Steps(notes), tmp_path).enable(DOOR, [Loopback("::1", 8322)])
    assert "systemctl --user stop card-http.service card-http.socket" in notes.taken()
    assert "ListenStream=[::1]:8322\n" in (tmp_path / SOCKET).read_text()


def test_disable_removes_the_units_and_twice_changes_nothing(tmp_path: Path) -> None:
    notes = Notes()
    units = DoorUnits(Steps(notes), tmp_path)
    units.enable(DOOR, [PORT])
    notes.taken()
    units.disable()
    assert files(tmp_path) == set()
    assert notes.taken() == [
        "systemctl --user disable --now card-http.socket card-http.service",
        "systemctl --user daemon-reload",
    ]
    units.disable()
    assert notes.taken() == []


def test_the_agent_is_loaded_anew_so_that_it_reads_its_addresses_and_removed_again(tmp_path: Path) -> None:
    notes = Notes("launchctl print")
    agent = DoorAgent(Steps(notes), tmp_path)
    agent.enable(DOOR, [PORT])
    file = tmp_path / "Library/LaunchAgents/io.card.http.plist"
    written = plistlib.loads(file.read_bytes())
    assert written["ProgramArguments"] == [str(DOOR)]
    assert written["StandardErrorPath"] == str(tmp_path / "Library/Logs/card-http.log")
    assert written["Umask"] == 0o077
    assert [command.split()[1] for command in notes.taken()] == ["bootstrap"]
    notes.failing.clear()
    agent.enable(DOOR, [PORT])
    assert [command.split()[1] for command in notes.taken()] == ["bootout", "bootstrap"]
    agent.disable()
    assert (files(tmp_path), len(notes.taken())) == (set(), 1)
