"""The dashboard and the alerts ask for metrics that exist."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.support import RawClient

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
FILES = ["grafana.json", "alerts.yml"]


@pytest.mark.parametrize("name", FILES)
def test_every_metric_that_is_asked_for_is_served(name: str, client: RawClient) -> None:
    client.result("infer", {"prompt": "x", "max_tokens": 2})
    served = set(re.findall(r"^(card_\w+)", client.result("daemon/metrics")["text"], re.MULTILINE))
    asked = set(re.findall(r"card_\w+", (FOLDER / name).read_text()))
    assert asked
    assert asked <= served


def test_the_dashboard_is_json_with_panels_that_do_not_overlap() -> None:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})
