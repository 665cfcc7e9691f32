"""`[http]` of card.toml, the flags over it, and the errors that name the key at fault."""

from pathlib import Path

import pytest

from car_client.door.settings import Settings, SettingsError, default_socket, load_settings, read_address
from car_daemon.config.file import read_config_file
from car_protocol.sockets import Loopback


def settings(folder: Path, text: str = "", *listen: str) -> Settings:
    """Return the settings of a user whose card.toml has this text."""
    (folder / "car").mkdir(exist_ok=True)
    (folder / "car" / "card.toml").write_text(text)
    return load_settings(listen, env={"XDG_CONFIG_HOME": str(folder), "XDG_RUNTIME_DIR": "/run/user/7"})


def test_without_a_file_the_door_listens_on_its_unix_socket_alone(tmp_path: Path) -> None:
    found = load_settings(env={"XDG_CONFIG_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/7"})
    assert found.addresses == (Path("/run/user/7/car/http.sock"),)
    assert (found.hosts, found.origins, found.no_key) == (frozenset(), frozenset(), False)
    assert found.keys == tmp_path / "car" / "http-keys"


def test_listen_adds_ports_to_the_socket(tmp_path: Path) -> None:
    one = settings(tmp_path, '[http]\nlisten = "127.0.0.1:8080"')
    assert one.socket == Path("/run/user/7/car/http.sock")
    assert one.ports == (Loopback("127.0.0.1", 8080),)
    two = settings(tmp_path, '[http]\nlisten = ["127.0.0.1:8080", "[::1]:8080", "unix:/tmp/x.sock"]')
    assert two.addresses == (Loopback("127.0.0.1", 8080), Loopback("::1", 8080), Path("/tmp/x.sock"))
    assert [port.url for port in two.ports] == ["http://127.0.0.1:8080", "http://[::1]:8080"]


def test_a_flag_replaces_the_configured_addresses(tmp_path: Path) -> None:
    found = settings(tmp_path, '[http]\nlisten = "127.0.0.1:8080"', "127.0.0.1:9090")
    assert found.ports == (Loopback("127.0.0.1", 9090),)


def test_the_daemon_socket_of_a_test_does_not_move_that_of_the_door() -> None:
    assert default_socket({"CAR_SOCKET": "/tmp/x/car.sock", "XDG_RUNTIME_DIR": "/run/user/7"}) == Path(
        "/run/user/7/car/http.sock"
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:8080", "not a loopback address"),
        ("192.168.1.2:8080", "not a loopback address"),
        ("[::]:8080", "not a loopback address"),
        ("localhost:8080", "not an address with a port"),
        ("127.0.0.1", "not an address with a port"),
        ("127.0.0.1:0", "give 1 to 65535"),
        ("127.0.0.1:70000", "give 1 to 65535"),
        ("999.0.0.1:80", "not an address"),
        ("unix:relative", "not an absolute path"),
        ("unix:/" + "x" * 120, "longer than"),
        ("", "give 127.0.0.1:PORT"),
    ],
)
def test_only_loopback_ports_and_sockets_are_accepted(address: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected.replace("[", r"\[")):
        read_address(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[http]\nlisten = "0.0.0.0:1"', "http.listen: 0.0.0.0 is not a loopback address"),
        ("[http]\nport = 8080", "port"),
        ('[http]\norigins = ["*"]', "http.origins"),
        ('[http]\norigins = ["https://a.example/path"]', "http.origins"),
        ('[http]\nhosts = ["a b"]', "http.hosts"),
        ('[http]\nhosts = ["..."]', "http.hosts"),
        (f'[http]\nhosts = ["{"a" * 64}.local"]', "http.hosts"),
        ("http = 3", "http:"),
        ("[http", "not valid TOML"),
    ],
)
def test_a_bad_setting_is_refused_by_its_key(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    assert expected in str(caught.value)


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no file"):
        load_settings(config=tmp_path / "none.toml")


def test_the_daemon_accepts_and_ignores_the_table_of_the_door(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text('[http]\nlisten = "127.0.0.1:8080"\norigins = ["app://obsidian.md"]\n')
    assert read_config_file(file).default_model == "guide"


def test_a_name_with_the_dot_of_the_root_is_the_name_that_requests_carry(tmp_path: Path) -> None:
    assert settings(tmp_path, '[http]\nhosts = ["VM2.local."]').hosts == {"vm2.local"}
