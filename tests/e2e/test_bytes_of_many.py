"""Unfinished frames of many processes of one user, beside another user's single long request."""

from pathlib import Path

import pytest

from tests.e2e.users import ALICE, BOB, connect_as, many_processes, shared_daemon

pytestmark = pytest.mark.slow


def test_many_small_parts_of_one_user_do_not_cost_another_a_long_request(folder: Path) -> None:
    meta = {"_meta": {"x": "a" * 6_000_000}}
    with (
        shared_daemon(folder, "[capacity]\nsequences = 2\n") as daemon,
        connect_as(BOB, daemon.path) as bob,
        many_processes(ALICE, daemon.path, 120, 2_200_000),
    ):
        assert all(bob.result("models/list", meta) for _ in range(5))
