"""The plugin for the command line `llm`, used as a person would, if `make llm-card` installed `llm`."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, model
from tests.e2e.support import LONG, ROOT, Daemon, running

ENVIRONMENT = ROOT / ".venv" / "llm"
CALL = {"id": "call_1", "function": {"name": "weather", "arguments": '{"place":"Vienna"}'}, "type": "function"}
TOOL = "def weather(place: str) -> str:\n    return f'It rains in {place}.'"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ENVIRONMENT / "installed").exists(), reason="make llm-card installs llm"),
]


class Llm:
    """The program with a folder and a daemon of its own."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self._env = {**os.environ, "LLM_USER_PATH": str(folder), "CAR_SOCKET": str(socket)}

    def __call__(self, *words: str) -> str:
        """Return what it printed; its words on the error stream if it failed."""
        ended = subprocess.run(
            [ENVIRONMENT / "bin" / "llm", *words], env=self._env, capture_output=True, text=True, check=False, input=""
        )
        return ended.stdout if ended.returncode == 0 else ended.stderr


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """The real daemon on its built-in model."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder, running(Path(folder)) as daemon:
        yield daemon.ready()


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    """A daemon whose model calls tools as its knobs say."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        fake = FakeDaemon(Path(folder) / "card.sock").start()
        fake.answers["models/list"] = {"models": [model(can=("generate", "chat", "tools"))]}
        yield fake
        fake.stop()


def test_the_models_of_the_daemon_are_listed_with_its_options(daemon: Daemon, tmp_path: Path) -> None:
    llm = Llm(tmp_path, daemon.path)
    assert "card: card/guide (aliases: card)" in llm("models")
    options = llm("models", "--options", "-m", "card")
    assert "temperature: float" in options
    assert "max_tokens: int" in options


def test_without_a_daemon_llm_works_and_has_no_models_of_card(tmp_path: Path) -> None:
    listed = Llm(tmp_path, tmp_path / "nobody.sock")("models")
    assert "OpenAI" in listed
    assert "card" not in listed


@pytest.mark.parametrize("how", [[], ["--no-stream"], ["--async"]], ids=["streamed", "whole", "asyncio"])
def test_a_question_is_answered(how: list[str], daemon: Daemon, tmp_path: Path) -> None:
    said = Llm(tmp_path, daemon.path)("-m", "card", LONG[0].question, "-o", "temperature", "0", *how)
    assert said.strip() == LONG[0].answer


def test_a_conversation_goes_on_with_what_was_said(fake: FakeDaemon, tmp_path: Path) -> None:
    llm = Llm(tmp_path, fake.path)
    llm("-m", "card", "-s", "Be brief", "Hello")
    llm("-c", "And now?")
    turns = [(turn["role"], turn["content"]) for turn in fake.params("infer_stream")["messages"]]
    assert turns == [("system", "Be brief"), ("user", "Hello"), ("assistant", "Hello"), ("user", "And now?")]
    assert fake.params("infer_stream")["client"] == "llm"


def test_an_answer_follows_a_schema(daemon: Daemon, tmp_path: Path) -> None:
    said = Llm(tmp_path, daemon.path)("-m", "card", "Does it rain?", "--schema", "rain bool", "-o", "max_tokens", "200")
    assert isinstance(json.loads(said)["rain"], bool)


def test_a_tool_is_called_and_its_result_goes_back(fake: FakeDaemon, tmp_path: Path) -> None:
    fake.first["infer"] = [ANSWER | {"text": "", "tool_calls": [CALL]}]
    said = Llm(tmp_path, fake.path)("-m", "card", "--no-stream", "--functions", TOOL, "What is the weather in Vienna?")
    assert said.strip() == "Hello"
    sent = fake.params("infer")
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather"]
    assert sent["messages"][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"place": "Vienna"}'}
    assert sent["messages"][-1]["content"] == "It rains in Vienna."


def test_a_call_that_was_cut_is_an_error_and_runs_nothing(fake: FakeDaemon, tmp_path: Path) -> None:
    cut = {**CALL, "function": {"name": "weather", "arguments": '{"pla'}, "invalid": "arguments"}
    fake.first["infer"] = [ANSWER | {"text": "", "tool_calls": [cut]}]
    said = Llm(tmp_path, fake.path)("-m", "card", "--no-stream", "--functions", TOOL, "What is the weather?")
    assert "the model's call of weather is not valid: arguments" in said
    assert len([call for call in fake.calls if call.method == "infer"]) == 1


def test_a_text_becomes_a_vector(daemon: Daemon, tmp_path: Path) -> None:
    vector = json.loads(Llm(tmp_path, daemon.path)("embed", "-m", "card/guide", "-c", "a lease"))
    assert len(vector) > 1
    assert all(isinstance(number, float) for number in vector)


def test_an_option_out_of_range_is_refused_in_the_daemons_words(daemon: Daemon, tmp_path: Path) -> None:
    assert "temperature: Expected" in Llm(tmp_path, daemon.path)("-m", "card", "Hello", "-o", "temperature", "9")
