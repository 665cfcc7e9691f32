"""The socket: its path by flag, environment and place, and the descriptors that systemd passes."""

import os
import sys
from pathlib import Path

import pytest

from car_protocol.sockets import MAX_PATH_BYTES, SYSTEM_SOCKET, candidate_paths, fits, socket_path, systemd_descriptors

OWN = str(os.getpid())
EVERYTHING = {"CAR_SOCKET": "/env.sock", "XDG_RUNTIME_DIR": "/run/user/7"}


def test_the_flag_comes_first() -> None:
    assert socket_path("/flag.sock", EVERYTHING) == Path("/flag.sock")


def test_then_the_environment() -> None:
    assert socket_path(None, EVERYTHING) == Path("/env.sock")


def test_then_the_runtime_folder() -> None:
    assert socket_path(None, {"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/car/card.sock")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has another place")
@pytest.mark.parametrize("env", [{}, {"XDG_RUNTIME_DIR": "", "CAR_SOCKET": ""}])
def test_then_a_folder_of_the_user_s_own(env: dict[str, str]) -> None:
    assert socket_path(None, env) == Path(f"/tmp/car-{os.getuid()}/card.sock")


@pytest.mark.skipif(sys.platform != "darwin", reason="the place on macOS")
def test_then_the_caches_folder() -> None:
    assert socket_path(None, {}) == Path.home() / "Library" / "Caches" / "car" / "card.sock"


def test_a_client_tries_the_system_service_where_no_path_was_given() -> None:
    env = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert candidate_paths(None, env) == [Path("/run/user/7/car/card.sock"), SYSTEM_SOCKET]
    assert Path("/run/car/card.sock") == SYSTEM_SOCKET


def test_a_path_that_was_given_is_the_only_one() -> None:
    assert candidate_paths("/flag.sock", EVERYTHING) == [Path("/flag.sock")]
    assert candidate_paths(None, EVERYTHING) == [Path("/env.sock")]


def test_the_length_of_a_path_counts_in_bytes() -> None:
    assert fits(Path("/" + "a" * (MAX_PATH_BYTES - 1)))
    assert not fits(Path("/" + "a" * MAX_PATH_BYTES))
    assert not fits(Path("/" + "é" * (MAX_PATH_BYTES // 2 + 1)))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, []),
        ({"LISTEN_FDS": "1", "LISTEN_PID": OWN, "LISTEN_FDNAMES": "rpc"}, [3]),
        ({"LISTEN_FDS": "1", "LISTEN_PID": OWN}, [3]),
        ({"LISTEN_FDS": "2", "LISTEN_PID": OWN, "LISTEN_FDNAMES": "rpc:other"}, [3, 4]),
        ({"LISTEN_FDS": "0", "LISTEN_PID": OWN}, []),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "1"}, []),
        ({"LISTEN_FDS": "1", "LISTEN_PID": ""}, []),
        ({"LISTEN_FDS": "1"}, []),
    ],
)
def test_descriptors_are_this_process_own_and_no_child_sees_them(env: dict[str, str], expected: list[int]) -> None:
    assert systemd_descriptors(env) == expected
    assert env == {}


@pytest.mark.parametrize("count", ["", "one", "-1", "9" * 5000])
def test_an_unreadable_number_of_descriptors_is_refused(count: str) -> None:
    with pytest.raises(ValueError, match="LISTEN_FDS is not a number"):
        systemd_descriptors({"LISTEN_FDS": count, "LISTEN_PID": OWN})
