"""The clients for Node and the AI SDK, unmodified, where node and the npm registry are at hand."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.door.support import DoorProcess
from tests.door.test_openai_client import SHORT
from tests.pace import HANG_S

PROGRAM = Path(__file__).parent / "node" / "clients.mjs"


@pytest.mark.slow
def test_the_clients_for_node_are_answered(modules: Path, door: DoorProcess) -> None:
    shutil.copy(PROGRAM, modules)
    env = {**os.environ, "URL_OF_DOOR": door.url, "KEY_OF_DOOR": door.key, "QUESTION": SHORT.question}
    command = ["node", str(modules / PROGRAM.name)]
    done = subprocess.run(command, cwd=modules, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    texts = [
        "chat",
        "stream",
        "responses",
        "responsesStream",
        "message",
        "messageStream",
        "ollama",
        "ollamaStream",
        "sdk",
        "sdkStream",
    ]
    assert {name: found[name] for name in texts} == dict.fromkeys(texts, SHORT.answer)
    assert (found["models"], found["tags"]) == (["guide"], ["guide:latest"])
    assert (found["error"], found["embedding"], found["counted"]) == (404, True, True)
