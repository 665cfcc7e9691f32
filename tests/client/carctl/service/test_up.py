"""The failure of a start: the daemon's own reason, whatever the client noticed first."""

from pathlib import Path

import pytest

from car_client.carctl.service.steps import ServiceError
from car_client.carctl.service.up import explain_start
from car_client.errors import CardError, ConnectionLost, Draining, ModelUnavailable

REASON = "cannot load the model /m.gguf: the file is not a GGUF"
FOUND = [
    ServiceError("card ended at its start"),
    ConnectionLost("connection lost"),
    Draining(1007, "the daemon is going down", {"reason": "draining"}),
    ModelUnavailable(1004, "the model cannot serve this request", {"reason": "model_unavailable"}),
]


@pytest.mark.parametrize("error", FOUND)
def test_a_daemon_that_names_its_reason_is_quoted_alone(error: CardError, tmp_path: Path) -> None:
    log = tmp_path / "card.log"
    log.write_text(f"2026-01-01 [info] daemon.started\ncard: {REASON}\n")
    assert explain_start(error, log) == f"card ended: {REASON}; log: {log}"


def test_without_a_reason_it_is_what_the_client_noticed_and_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "card.log"
    log.write_text("one\ntwo\n")
    assert explain_start(FOUND[0], log) == f"card ended at its start; the end of {log}: one | two"
    assert explain_start(FOUND[0], None) == "card ended at its start; see carctl service logs"
