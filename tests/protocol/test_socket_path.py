"""The socket's path: flag over environment over the user's own place; the system service's comes last."""

import os
import sys
from pathlib import Path

import pytest

from car_protocol.sockets import MAX_PATH_BYTES, SYSTEM_SOCKET, candidate_paths, fits, socket_path

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
