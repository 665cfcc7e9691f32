"""Model objects for administrators and others."""

from pathlib import Path

import pytest

from car_daemon.methods.model_report import ModelReport
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.scheduler.gate import Gate
from car_daemon.sockets.peer import Peer

ADMIN, OTHER = Peer(1000, 1), Peer(1001, 1)


@pytest.mark.parametrize(("peer", "path"), [(ADMIN, "/home/a/secret/m.gguf"), (OTHER, "m.gguf")])
def test_only_administrators_get_the_path_of_a_models_file(peer: Peer, path: str) -> None:
    pool = ModelPool({"m": ModelSettings(Path("/home/a/secret/m.gguf"))}, "m", on_change=lambda _: None)
    report = ModelReport(pool, Gate(), lambda: {ADMIN.uid})
    assert report.of(pool.default, peer).path == path
