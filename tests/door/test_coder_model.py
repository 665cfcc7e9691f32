"""The coder model: decisions in the words of three families as llama-server answers them, tool calls, gap filling.

The vectors beside the repository are answers of llama-server b11434 on a CPU, by copies of the coder model that are of
a family (`tools.decision_model`). The probabilities of such a copy move by up to 0.024 with the cuts of a prompt, in
either server. With the cuts of llama-server the binding gives the probabilities of openjev to five digits.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.door.support import OfflineDoor
from tests.e2e.support import Daemon, configured, running
from tools.decision_model import write_decision_model
from tools.real_model import CODER

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[3] / "shared" / "vectors" / "decide"
ABSENT = pytest.mark.skip(reason="no answers of llama-server beside the repository")
VECTORS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))}
FAMILIES: list[object] = [*VECTORS] or [pytest.param("none", marks=ABSENT)]
# What the cuts of a prompt change at most. A wrong label or temperature changes more; a wrong word also the tokens.
SPREAD = 0.03
CLOSE = 0.02
# llama-server reads control tokens in texts of clients as such. Here they stay text, which takes more tokens.
TOKENS_IN_TEXT = "control tokens in the state"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def coder() -> Iterator[Daemon]:
    """A daemon with the coder model and a copy for each family."""
    if not CODER.path.exists():
        pytest.skip(f"{CODER.file} is missing: make real-model MODEL=coder")
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder, paths = Path(name), {"coder": CODER.path}
        for family, vectors in VECTORS.items():
            paths[family] = folder / f"{family}.gguf"
            words = {name: vectors[name] for name in ("template", "temperatures")}
            write_decision_model(CODER.path, paths[family], architecture="qwen2", family=family, **words)
        tables = [
            f'[models.{model}]\npath = "{path}"\nsequences = 1\ncontext_tokens = 2048\n'
            for model, path in paths.items()
        ]
        with running(folder, *configured(folder, 'default_model = "coder"\n' + "".join(tables))) as daemon:
            yield daemon.ready()


async def posted(daemon: Daemon, keys: Path, path: str, body: dict[str, Any]) -> Any:
    async with OfflineDoor(daemon.path, keys) as door:
        found = await door.post(path, body)
        assert found.status == 200, found.body
        return found.json


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_family_is_asked_and_read_as_llama_server_does(family: str, coder: Daemon, tmp_path: Path) -> None:
    for case in VECTORS[family]["cases"]:
        expected, name = case["response"], case["name"]
        found = await posted(coder, tmp_path / "keys", "/v1/systemone", {**case["request"], "model": family})
        if name == TOKENS_IN_TEXT:
            assert found["usage"]["input_tokens"] > expected["usage"]["input_tokens"]
            continue
        assert found["usage"]["input_tokens"] == expected["usage"]["input_tokens"], name
        for question, answer in expected["answers"].items():
            before, now = (distribution(each) for each in (answer, found["answers"][question]))
            assert now == pytest.approx(before, abs=SPREAD), (name, question)
            best, second = sorted(before, key=before.__getitem__, reverse=True)[:2]
            assert before[best] - before[second] <= CLOSE or max(now, key=now.__getitem__) == best, (name, question)


def distribution(answer: Any) -> dict[str, float]:
    """Return the probabilities of an answer, those of a predicate by its sides."""
    so = answer.get("noul")
    return answer["probabilities"] if so is None else {"true": so, "false": 1 - so}


async def test_a_chat_model_decides_by_its_labels(coder: Daemon, tmp_path: Path) -> None:
    questions = {
        "city": {
            "type": "choice",
            "instructions": "Which city?",
            "criteria": {"Rome": None, "Paris": None, "Oslo": None},
        },
        "named": {"type": "noul", "instructions": "The text names a city."},
    }
    body = {"state": "The capital of France is Paris.", "questions": questions, "model": "coder"}
    found = (await posted(coder, tmp_path / "keys", "/v1/systemone", body))["answers"]
    assert found["city"]["choice"] == "Paris"
    assert min(answer["x_mass"] for answer in found.values()) > 0.5


async def test_a_tool_is_called_with_the_argument_of_the_question(coder: Daemon, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"model": "coder", "messages": said, "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    found = await posted(coder, tmp_path / "keys", "/v1/chat/completions", {**body, "max_tokens": 60})
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert "Paris" in json.loads(call["function"]["arguments"])["city"]


async def test_a_gap_is_filled_by_what_stands_around_it(coder: Daemon, tmp_path: Path) -> None:
    body = {"model": "coder", "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    found = await posted(coder, tmp_path / "keys", "/v1/completions", {**body, "temperature": 0, "max_tokens": 12})
    assert found["choices"][0]["text"].strip().startswith("a + b")
