"""Model objects for administrators and others."""

from pathlib import Path

import pytest

from car_daemon.methods.model_report import ModelReport
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_daemon.scheduler.gate import Gate

ADMIN, OTHER = Identity(1000), Identity(1001)


@pytest.mark.parametrize(("caller", "path"), [(ADMIN, "/home/a/secret/m.gguf"), (OTHER, "m.gguf")])
def test_only_administrators_get_the_path_of_a_models_file(caller: Identity, path: str) -> None:
    pool = ModelPool({"m": ModelSettings(Path("/home/a/secret/m.gguf"))}, "m", on_change=lambda _: None)
    report = ModelReport(pool, Gate(), lambda: {ADMIN.uid})
    assert report.of(pool.default, caller).path == path
