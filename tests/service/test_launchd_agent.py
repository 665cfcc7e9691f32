"""The LaunchAgent against launchd.plist(5); it was never run on macOS."""

import plistlib
from pathlib import Path
from typing import Any

import pytest

from car_client.carctl.service import units

PATHS = {"CARD": Path("/opt/card & co/bin/card"), "SOCKET": Path("/tmp/car/card.sock"), "LOG": Path("/tmp/card.log")}
# The keys that are used, with the type that the manual page gives them; a dictionary by its own keys.
KEYS: dict[str, Any] = {
    "Label": str,
    "ProgramArguments": list,
    "Sockets": {"rpc": {"SockPathName": str, "SockPathMode": int}},
    "RunAtLoad": bool,
    "KeepAlive": {"SuccessfulExit": bool},
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "Umask": int,
    "HardResourceLimits": {"Core": int},
    "StandardErrorPath": str,
}


def misfits(value: Any, kind: Any, name: str = "") -> list[str]:
    """Return what a value has besides, instead of or without what the table says."""
    if not isinstance(kind, dict):
        return [] if type(value) is kind else [f"{name} is no {kind.__name__}"]
    if not isinstance(value, dict):
        return [f"{name} is no dictionary"]
    unknown = [f"{name}.{key} is unknown" for key in value.keys() ^ kind.keys()]
    return unknown + [
        fault for key in value.keys() & kind.keys() for fault in misfits(value[key], kind[key], f"{name}.{key}")
    ]


@pytest.fixture
def agent() -> dict[str, Any]:
    """The agent as it is installed."""
    read: dict[str, Any] = plistlib.loads(units.agent(PATHS, units.LAUNCHD_LABEL))
    return read


def test_every_key_is_one_that_launchd_knows(agent: dict[str, Any]) -> None:
    assert misfits(agent, KEYS) == []


def test_a_mistyped_key_or_type_would_be_found(agent: dict[str, Any]) -> None:
    assert misfits(agent | {"ExitTimeout": 45}, KEYS) == [".ExitTimeout is unknown"]
    assert misfits(agent | {"Umask": "077"}, KEYS) == [".Umask is no int"]
    assert misfits(agent | {"RunAtLoad": 1}, KEYS) == [".RunAtLoad is no bool"]


def test_it_survives_being_written_again(agent: dict[str, Any]) -> None:
    assert plistlib.loads(plistlib.dumps(agent)) == agent


def test_all_paths_are_filled_in_and_absolute(agent: dict[str, Any]) -> None:
    assert agent["ProgramArguments"] == [str(PATHS["CARD"]), "--log-format", "json"]
    assert agent["Sockets"]["rpc"]["SockPathName"] == str(PATHS["SOCKET"])
    assert agent["StandardErrorPath"] == str(PATHS["LOG"])
    assert b"@" not in units.agent(PATHS, units.LAUNCHD_LABEL)


def test_the_socket_and_what_the_daemon_makes_are_the_users_own(agent: dict[str, Any]) -> None:
    assert agent["Sockets"]["rpc"]["SockPathMode"] == 0o600
    assert agent["Umask"] == 0o077
    assert agent["HardResourceLimits"]["Core"] == 0


def test_it_comes_back_after_a_failure_only_and_has_the_time_that_a_drain_takes(agent: dict[str, Any]) -> None:
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ExitTimeOut"] > 30


def test_the_label_is_the_name_of_the_file(agent: dict[str, Any]) -> None:
    assert agent["Label"] == units.LAUNCHD_LABEL


def test_every_key_of_the_doors_agent_is_one_that_launchd_knows() -> None:
    door = plistlib.loads(units.agent({"CARD": PATHS["CARD"], "LOG": PATHS["LOG"]}, "io.card.http"))
    assert misfits(door, {key: kind for key, kind in KEYS.items() if key != "Sockets"}) == []
    assert door["Label"] == "io.card.http"
    assert "@" not in str(door)
