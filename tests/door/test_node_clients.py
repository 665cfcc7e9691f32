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

PACKAGES = ["openai@6", "@anthropic-ai/sdk@1", "ollama@0", "ai@5", "@ai-sdk/openai-compatible@1"]
PROGRAM = Path(__file__).parent / "node" / "clients.mjs"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    if done.returncode:
        pytest.skip("npm cannot install the clients: is there a registry?")
    shutil.copy(PROGRAM, folder)
    return folder


@pytest.mark.slow
def test_the_clients_for_node_are_answered(modules: Path, door: DoorProcess) -> None:
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
    assert (found["models"], found["tags"]) == (["guide"], ["guide"])
    assert (found["error"], found["embedding"], found["counted"]) == (404, True, True)
