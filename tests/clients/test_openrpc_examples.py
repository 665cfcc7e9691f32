"""The examples of the OpenRPC document, called on a real daemon: by hand, and by OpenRPC's own tool."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_protocol.examples import EXAMPLES
from car_protocol.methods import METHODS
from tests.e2e.support import Daemon, configured, running
from tests.pace import HANG_S
from tools.random_models.embedding import generate_embedding

TOOL = "@open-rpc/test-coverage@2.2.4"
COVERAGE = Path(__file__).parent / "node" / "coverage.mjs"
DRAIN = "daemon/drain"  # the daemon ends with its answer
# What is the same on every machine.
TO_THE_WORD = ("tokenize", "detokenize", "daemon/drain", "$/cancelRequest", "daemon/cancel", "daemon/reload")

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the guide, and with a model that ranks under the name that the examples give it."""
    path = tmp_path / "ranks.gguf"
    generate_embedding(path, pooling="rank")
    with running(tmp_path, *configured(tmp_path, f'[models.reranker]\npath = "{path}"\n')) as daemon:
        yield daemon.ready()


def test_each_example_is_answered_as_it_says(daemon: Daemon) -> None:
    with daemon.connect() as client:
        results = {name: client.result(name, example.params) for name, example in EXAMPLES.items() if name != DRAIN}
        results[DRAIN] = client.result(DRAIN, EXAMPLES[DRAIN].params)
    for name, result in results.items():
        expected = EXAMPLES[name].result
        msgspec.convert(result, METHODS[name].result)
        assert expected.keys() <= result.keys(), name
        if name in TO_THE_WORD:
            assert result == expected, name
    assert results["infer"]["text"] == EXAMPLES["infer"].result["text"]
    assert results["infer"]["usage"] == EXAMPLES["infer"].result["usage"]


def test_open_rpcs_own_tool_finds_every_method_as_documented(daemon: Daemon, tmp_path: Path) -> None:
    assert of_the_tool(daemon, tmp_path) == dict.fromkeys(METHODS, "holds")


def of_the_tool(daemon: Daemon, folder: Path) -> Any:
    """Return how the tool found each method; skips the test where the tool cannot be installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node or npm is not installed")
    install = [
        npm,
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "@open-rpc/test-coverage@2.2.4",
    ]
    if subprocess.run(install, cwd=folder, capture_output=True, timeout=HANG_S, check=False).returncode:
        pytest.skip("npm cannot install OpenRPC's tool: is there a registry?")
    shutil.copy(COVERAGE, folder)
    command = ["node", COVERAGE.name, str(daemon.path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
