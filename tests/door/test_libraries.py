"""Libraries on top of OpenAI's client, unmodified, where `make clients` made their environment."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import DoorProcess
from tests.door.test_openai_client import SHORT
from tests.pace import HANG_S

CLIENTS = Path(__file__).parents[2] / ".venv" / "clients"
PYTHON = CLIENTS / "bin" / "python"
PROGRAM = Path(__file__).parent / "python" / "clients.py"
CALL = {"id": "call_1", "type": "function", "function": {"name": "Weather", "arguments": '{"place":"Vienna"}'}}


@pytest.mark.slow
@pytest.mark.skipif(not (CLIENTS / "installed").exists(), reason="make clients installs the libraries")
@pytest.mark.parametrize("library", ["langchain", "litellm", "instructor", "pydantic_ai", "llama_index"])
def test_a_library_chats_streams_calls_tools_and_follows_a_schema(
    library: str, door: DoorProcess, scripted_door: DoorProcess, scripted: FakeDaemon, tmp_path: Path
) -> None:
    scripted.first["infer"] = [ANSWER | {"text": "", "tool_calls": [CALL]}]
    found = run(library, door, scripted_door, tmp_path)
    assert found["chat"] == SHORT.answer
    assert "".join(found["stream"]) == SHORT.answer
    assert len([piece for piece in found["stream"] if piece]) > 1
    assert found["schema"] == "seven"
    assert found["tool"] == ["Weather", {"place": "Vienna"}]


def run(library: str, door: DoorProcess, scripted_door: DoorProcess, folder: Path) -> dict[str, Any]:
    """Return what a library printed."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # no request leaves the machine
        "URL_OF_DOOR": door.url,
        "KEY_OF_DOOR": door.key,
        "URL_OF_SCRIPTED": scripted_door.url,
        "KEY_OF_SCRIPTED": scripted_door.key,
        "QUESTION": SHORT.question,
    }
    done = subprocess.run(
        [str(PYTHON), str(PROGRAM), library], env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
