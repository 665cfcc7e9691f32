"""schemathesis, from the door's own OpenAPI document, against a real door and a real daemon.

Each endpoint has a turn with requests that the document allows, and a turn with others. `DOOR_FUZZ_S=600` gives further
turns until ten minutes are over, `DOOR_FUZZ_SEED=7` sends other requests.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from tests.door.support import DoorProcess, door_before
from tests.door.test_fuzz import BODIES
from tests.e2e.support import configured, running
from tests.pace import HANG_S

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("tests.door.fuzz_checks")
from schemathesis.checks import not_a_server_error  # noqa: E402 - where schemathesis is
from schemathesis.core.failures import FailureGroup  # noqa: E402 - where schemathesis is
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402 - where schemathesis is

SECONDS = int(os.environ.get("DOOR_FUZZ_S", "0"))
FIRST_SEED = int(os.environ.get("DOOR_FUZZ_SEED", "1"))
# The first would refuse every 5xx: `errors_have_a_meaning` allows 503 and 504 where they are right.
# The second would refuse every 4xx to a body that is right by its form: values have refusals of their own.
EXCLUDED = [not_a_server_error, positive_data_acceptance]
# Requests to an endpoint before its turn ends.
TURN = 2
# Its events never end.
ENDLESS = {"/models/sse", "/v1/models/sse"}
CONFIG = """
[models.guide]
context_tokens = 2048
default_max_tokens = 4
"""


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[DoorProcess]:
    """A door before a daemon whose answers are short."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        with running(folder, *configured(folder, CONFIG)) as daemon, door_before(folder, daemon.path) as door:
            yield door


class Fuzzer:
    """Requests of one document: their statuses by endpoint, and the failed checks, each once."""

    def __init__(self, door: DoorProcess) -> None:
        self._headers = {"Authorization": f"Bearer {door.key}"}
        schema = schemathesis.openapi.from_url(f"{door.url}/openapi.json", headers=self._headers)
        described = [each.ok() for each in schema.get_all_operations()]
        paths = {each.path for each in described}
        # Paths with the prefix are those without it once more.
        self.operations = [each for each in described if each.path not in ENDLESS and f"/v1{each.path}" not in paths]
        self.statuses: dict[tuple[str, str], Counter[int]] = {}
        self.failures: dict[str, str] = {}
        self._turn = 0

    def turn(self, operation: Any, mode: Any) -> None:
        """Send some requests that the document allows, or forbids."""
        self._turn += 1

        @seed(self._turn + FIRST_SEED)
        @settings(
            max_examples=TURN if operation.body else 2,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            if mode.is_positive and self._turn % 2 and operation.path in BODIES and isinstance(case.body, dict):
                # With a conversation that the model takes, the other members are read too.
                case.body = {**case.body, **BODIES[operation.path], "model": "guide"}
            self._send(case, f"{operation.method.upper()} {operation.path}", mode.value)

        with suppress(Unsatisfiable):  # without a body and parameters nothing can be wrong
            run()

    def _send(self, case: Any, name: str, mode: str) -> None:
        response = case.call(headers=self._headers, timeout=HANG_S)
        self.statuses.setdefault((name, mode), Counter())[response.status_code] += 1
        try:
            case.validate_response(response, headers=self._headers, excluded_checks=EXCLUDED)
        except FailureGroup as failed:
            for failure in failed.exceptions:
                self.failures.setdefault(f"{name}: {failure}", f"{case.as_curl_command()}\n{response.text}")


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_no_request_by_the_document_or_against_it_ends_in_a_defect(fuzzed: DoorProcess) -> None:
    fuzzer = Fuzzer(fuzzed)
    end = time.monotonic() + SECONDS
    while not fuzzer.statuses or time.monotonic() < end:
        for operation, mode in product(fuzzer.operations, schemathesis.GenerationMode):
            fuzzer.turn(operation, mode)
    print(f"seed {FIRST_SEED}: {sum(counts.total() for counts in fuzzer.statuses.values())} requests")
    for (name, mode), counts in sorted(fuzzer.statuses.items()):
        print(f"{name:45} {mode:9} {dict(sorted(counts.items()))}")
    assert not fuzzer.failures, "\n\n".join(f"{name}\n{how}" for name, how in fuzzer.failures.items())
