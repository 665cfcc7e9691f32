"""The text of the metrics, from a status and the gate's count of leases."""

import msgspec
import pytest

from car_daemon.telemetry.metrics import Metrics
from car_protocol.status import Status
from tests.client.samples import busy_status

pytest.importorskip("prometheus_client")


def test_sequences_in_use_are_those_of_all_machines() -> None:
    # The status has those of this machine alone, because its limit counts no others.
    status = msgspec.convert(busy_status() | {"models": []}, Status)
    text = Metrics(lambda: status, connections=lambda: 3, leased=lambda: 12, latencies={}, usage={}).text()
    assert "card_sequences_in_use 12.0" in text.splitlines()
    assert status.capacity.machine.in_use != 12
