"""The coder model: decisions in the words of three families as llama-server answers them, tool calls, gap filling.

The vectors beside the repository are answers of llama-server b11434 on a CPU with AVX-512, by copies of the coder model
that are of a family (`tools.decision_model`). It had one slot, and cut a prompt where it differed from the prompt
before. With these cuts and on such a CPU the answers are equal to seven digits. Other cuts, and a CPU with AVX2 alone,
move the probabilities of such a copy by up to 0.028, a CPU with AMX by up to 0.033.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_base.ipc.codec import tokens_of
from car_base.ipc.frames import PrepareDecision
from car_engine.llama.context import LlamaContext
from car_engine.llama.library import library_build
from car_engine.llama.model import LlamaModel
from car_engine.llama.sampler import LabelReadout, Logits
from car_engine.llama.tokens import Vocabulary
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.conversation import Conversations
from car_engine.prompt.decision_families import labels_of
from car_engine.prompt.decisions import DecisionPreparer, way_of
from car_engine.prompt.rendering.renderer import Preparation
from car_engine.prompt.template import ChatTemplate
from car_protocol.decide import DecideParams
from tests.client.fake_daemon import FakeDaemon
from tests.daemon.requests.test_deciding import Asked
from tests.door.support import OfflineDoor
from tests.e2e.support import Daemon, configured, running
from tests.engine.llama.conftest import loaded
from tests.engine.prompt.fakes import finished
from tools.decision_model import write_decision_model
from tools.real_model import CODER

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[3] / "shared" / "vectors" / "decide"
ABSENT = pytest.mark.skip(reason="no answers of llama-server beside the repository")
VECTORS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))}
FAMILIES: list[object] = [*VECTORS] or [pytest.param("none", marks=ABSENT)]
# What other cuts of a prompt, or another CPU, change at most. A wrong label or temperature changes more; a wrong word
# also changes the tokens.
SPREAD = 0.04
# Of two probabilities that each change so much the order may change.
CLOSE = 2 * SPREAD
CONTEXT_TOKENS = 2048
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
def copies() -> Iterator[dict[str, Path]]:
    """A copy of the coder model for each family."""
    if not CODER.path.exists():
        pytest.skip(f"{CODER.file} is missing: make real-model MODEL=coder")
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        paths = {family: Path(name) / f"{family}.gguf" for family in VECTORS}
        for family, vectors in VECTORS.items():
            words = {name: vectors[name] for name in ("template", "temperatures")}
            write_decision_model(CODER.path, paths[family], architecture="qwen2", family=family, **words)
        yield paths


@pytest.fixture(scope="module")
def coder(copies: dict[str, Path]) -> Iterator[Daemon]:
    """A daemon with the coder model and its copies."""
    tables = [
        f'[models.{model}]\npath = "{path}"\nsequences = 1\ncontext_tokens = {CONTEXT_TOKENS}\n'
        for model, path in {"coder": CODER.path, **copies}.items()
    ]
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        with running(folder, *configured(folder, 'default_model = "coder"\n' + "".join(tables))) as daemon:
            yield daemon.ready()


class OneSlot:
    """Decides with a model as llama-server does with one slot: a prompt is cut where it differs from the one before."""

    def __init__(self, model: LlamaModel) -> None:
        vocabulary, metadata = Vocabulary(model), model.metadata
        template = ChatTemplate(metadata.decision_template or "", vocabulary, Preparation().answer, begins=False)
        way = way_of(metadata.own, own_words=True, chats=True)
        assert way.family is not None
        labels = labels_of(way.family, vocabulary.pieces)
        limit = ContextLimit(CONTEXT_TOKENS, vocabulary.longest_piece)
        self._decisions = DecisionPreparer(way, list(labels), Conversations(template, limit))
        self._readout = LabelReadout(list(labels.values()))
        self._context = LlamaContext(model, sequences=1, context_tokens=CONTEXT_TOKENS, threads=2)
        self._before: list[int] = []

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def decide(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `decide`."""
        given = msgspec.convert(params, DecideParams)
        found = finished(self._decisions.prepare(PrepareDecision(1, 0, given.prompt, "", {})))
        assert found.decision is not None
        asked = Asked(given.questions, found.decision.questions)
        tokens, start = tokens_of(found.tokens), found.decision.prefix
        for tail in found.decision.tails:
            prompt = tokens[: found.decision.prefix] + tokens[start : start + tail.length]
            start += tail.length
            asked.read(*self._readout.of(self._logits(prompt), tail.labels))
        asked.end()
        result: dict[str, Any] = msgspec.to_builtins(asked.decision)
        return result

    def _logits(self, prompt: list[int]) -> Logits:
        pairs = zip(self._before, prompt[:-1], strict=False)
        cut = next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        cut = min(len(self._before), len(prompt) - 1) if cut is None else cut
        self._context.cut(0, cut)
        rows = len(prompt) - cut
        positions = list(range(cut, len(prompt)))
        assert self._context.decode(prompt[cut:], positions, [0] * rows, [False] * (rows - 1) + [True]) == 0
        self._before = prompt
        return self._context.logits(rows - 1)


async def posted(daemon: Daemon, keys: Path, path: str, body: dict[str, Any]) -> Any:
    async with OfflineDoor(daemon.path, keys) as door:
        found = await door.post(path, body)
        assert found.status == 200, found.body
        return found.json


@pytest.mark.skipif(
    "AVX512 = 1" not in library_build() or "AMX_INT8 = 1" in library_build(),
    reason="the answers were written on a CPU with AVX-512 and without AMX",
)
@pytest.mark.parametrize("family", FAMILIES)
async def test_with_the_cuts_of_llama_server_its_probabilities_are_met_to_seven_digits(
    family: str, copies: dict[str, Path], offline: OfflineDoor, fake: FakeDaemon
) -> None:
    with loaded(copies[family]) as model, closing(OneSlot(model)) as slot:
        fake.answers["decide"] = slot.decide
        # They have every type of question; the daemon's prompts of all cases are compared below.
        for case in VECTORS[family]["cases"][:2]:
            found = (await offline.post("/v1/systemone", case["request"])).json["answers"]
            for name, answer in case["response"]["answers"].items():
                assert distribution(found[name]) == pytest.approx(distribution(answer), abs=1e-6), (case["name"], name)


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


@pytest.mark.parametrize("choice", ["required", "auto"])  # it writes calls of its own without their tags
async def test_a_tool_is_called_with_the_argument_of_the_question(coder: Daemon, tmp_path: Path, choice: str) -> None:
    said = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"model": "coder", "messages": said, "tools": [TOOL], "tool_choice": choice, "temperature": 0}
    found = await posted(coder, tmp_path / "keys", "/v1/chat/completions", {**body, "max_tokens": 60})
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert "Paris" in json.loads(call["function"]["arguments"])["city"]


async def test_a_tool_is_called_before_the_answer_that_has_a_schema(coder: Daemon, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"celsius": {"type": "integer"}}, "required": ["celsius"]}
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
    said: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"model": "coder", "tools": [TOOL], "response_format": form, "temperature": 0, "max_tokens": 60}
    found = await posted(coder, tmp_path / "keys", "/v1/chat/completions", {**body, "messages": said})
    message = found["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    said += [message, {"role": "tool", "tool_call_id": call["id"], "content": "31 degrees Celsius"}]
    body |= {"messages": said, "tool_choice": "none"}  # it would call again
    found = await posted(coder, tmp_path / "keys", "/v1/chat/completions", body)
    assert json.loads(found["choices"][0]["message"]["content"]) == {"celsius": 31}


async def test_a_gap_is_filled_by_what_stands_around_it(coder: Daemon, tmp_path: Path) -> None:
    body = {"model": "coder", "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    found = await posted(coder, tmp_path / "keys", "/v1/completions", {**body, "temperature": 0, "max_tokens": 12})
    assert found["choices"][0]["text"].strip().startswith("a + b")
