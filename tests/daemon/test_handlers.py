"""What the methods do of their own."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from car_daemon.connection import Connection
from car_daemon.handlers import Handlers
from car_daemon.peer import ANYBODY


@pytest.mark.parametrize("blocked", [False, True])
def test_who_does_not_read_is_passed_over_when_the_status_is_told(*, blocked: bool) -> None:
    told: list[tuple[str, object]] = []
    nothing = cast(Any, None)
    reports = cast(Any, SimpleNamespace(status=lambda peer: peer))
    connection = SimpleNamespace(
        blocked=blocked, peer=ANYBODY, notify=lambda method, params: told.append((method, params))
    )
    Handlers(nothing, nothing, reports, nothing)._tell_status(cast(Connection, connection))
    assert told == ([] if blocked else [("daemon/status_changed", ANYBODY)])
