"""Clients of decisions, unmodified: OpenAI's, TypeSafe's, and the conformance suite of the field."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from car_engine.prompt.decision_families import CHAT
from car_protocol.decide import MAX_OPTIONS
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import decided, model
from tests.door.support import DoorProcess, door_before
from tests.e2e.support import configured, running
from tests.pace import HANG_S
from tools.random_model import generate

openai = pytest.importorskip("openai")
typesafe = pytest.importorskip("typesafe_sdk")
JEVCOMPAT = Path(sys.executable).with_name("jevcompat")
OPTIONS = {f"q{number}": None for number in range(MAX_OPTIONS)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deciding_door() -> Iterator[DoorProcess]:
    """A door before a daemon with a tiny model that writes 255 labels as one token each."""
    pairs = [label for label in CHAT.labels if len(label) > 1]
    letters = len(CHAT.labels) - len(pairs)
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        path = folder / "labels.gguf"
        generate(path, "long", extra_tokens=dict.fromkeys(pairs[: MAX_OPTIONS - letters], False))
        table = f'[models.labels]\npath = "{path}"\nsequences = 4\ncontext_tokens = 32768\n'
        with (
            running(folder, *configured(folder, f'default_model = "labels"\n{table}')) as daemon,
            door_before(folder, daemon.ready().path) as door,
        ):
            yield door


def test_every_requirement_of_the_conformance_suite_is_met(deciding_door: DoorProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        str(JEVCOMPAT),
        "test",
        deciding_door.url,
        "--key",
        deciding_door.key,
        "--timeout",
        str(HANG_S),
        "--json",
        str(report),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_openais_client_decides(deciding_door: DoorProcess) -> None:
    with openai.OpenAI(base_url=f"{deciding_door.url}/v1", api_key=deciding_door.key, max_retries=0) as client:
        found = client.decisions.create(
            model=client.models.list().data[0].id,
            input=[{"role": "user", "content": [{"type": "input_text", "text": "I was charged twice."}]}],
            questions=[
                {"type": "choice", "instructions": "Which team?", "choices": [{"value": each} for each in OPTIONS]},
                {"type": "predicate", "instructions": "Is it about money?", "name": "money"},
            ],
        )
    choice, predicate = found.answers
    assert choice.choice in OPTIONS
    assert sum(each.probability for each in choice.probabilities) == pytest.approx(1, abs=1e-6)
    assert (predicate.name, predicate.type) == ("money", "predicate")
    assert 0 <= predicate.probability <= 1


def test_typesafes_client_decides_with_its_default_model(deciding_door: DoorProcess) -> None:
    questions = {
        "team": typesafe.Choice(instructions="Which team?", criteria=OPTIONS),
        "angry": typesafe.Noul(instructions="Is the customer angry?"),
    }
    with typesafe.TypeSafeClient(api_key=deciding_door.key, base_url=deciding_door.url, timeout=HANG_S) as client:
        found = client.system_one(state="I was charged twice.", questions=questions)
    assert set(found.choices["team"].probabilities) == set(OPTIONS)
    assert 0 <= found.nouls["angry"].noul <= 1


def test_typesafes_client_sends_its_images(scripted_door: DoorProcess, scripted: FakeDaemon) -> None:
    scripted.answers["decide"] = decided
    scripted.answers["models/list"] = {"models": [model(can=("chat", "decide"))]}
    data = bytes(range(256)) * 40
    image: Any = typesafe.Image(data)
    questions = {"cat": typesafe.Noul(instructions="Is it a cat?")}
    with typesafe.TypeSafeClient(api_key=scripted_door.key, base_url=scripted_door.url) as client:
        found = client.system_one(state={"photo": image}, questions=questions)
    assert found.nouls["cat"].noul == 0.75
    (message,) = scripted.params("decide")["state"]
    texts = [part["text"] for part in message["content"] if part["type"] == "text"]
    assert json.loads("IMAGE".join(texts)) == {"photo": "IMAGE"}
