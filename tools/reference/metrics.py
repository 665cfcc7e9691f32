"""The table of the metrics, from the text that a daemon serves."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from car_daemon.telemetry.metrics import Metrics
from car_http.metrics import HELP
from car_protocol.status import Status
from tests.client.samples import busy_status
from tools.reference.protocol import table


def metrics() -> str:
    """Return every family with its kind, its labels and its meaning."""
    status = msgspec.convert(busy_status() | {"models": []}, Status)
    text = Metrics(lambda: status, lambda: 0, lambda: 0, {}, {}).text()
    families = [each for each in text_string_to_metric_families(text) if each.name.startswith("card_")]
    rows = [(f"`{each.name}`", each.type, each.documentation.rstrip(".")) for each in families]
    return table(("metric", "kind", "meaning"), sorted(rows))


def of_the_door() -> str:
    """Return the families of the HTTP door."""
    rows = [(f"`{name}`", kind, meaning) for name, (kind, meaning) in sorted(HELP.items())]
    return table(("metric", "kind", "meaning"), rows)


TABLES = {"metrics": metrics, "door metrics": of_the_door}
