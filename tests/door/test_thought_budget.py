"""Budgets for thoughts through the vendors' clients, unmodified, before a model that never closes a thought."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.door.support import DoorProcess, door_before
from tests.e2e.support import RawClient, conversation, running
from tools.random_model import generate

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ '<think>\n' }}"
ASKED: dict[str, Any] = {"model": "model", "messages": conversation("Hi")}
LENGTH = 24
BUDGET = 8
Parts = tuple[str, str]  # the thought and the text


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[DoorProcess, RawClient]]:
    """A door with `low` at the budget, and a client of the daemon behind it."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        path = folder / "model.gguf"
        generate(path, "tiny", "q8_0", template=TEMPLATE, extra_tokens={"<think>": False, "</think>": False})
        (folder / "config" / "car").mkdir(parents=True)
        (folder / "config" / "car" / "card.toml").write_text(f"[http]\nefforts = {{ low = {BUDGET} }}\n")
        with (
            running(folder, "--model", str(path)) as daemon,
            daemon.ready().connect() as client,
            door_before(folder, daemon.path) as door,
        ):
            yield door, client


def by_openai(door: DoorProcess, more: dict[str, Any]) -> tuple[Parts, Parts]:
    asked = ASKED | {"max_tokens": LENGTH, "temperature": 0, "extra_body": {"ignore_eos": True} | more}
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0) as client:
        message = client.chat.completions.create(**asked).choices[0].message
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return (message.reasoning_content, message.content), (thought, "".join(delta.content or "" for delta in deltas))


def by_anthropic(door: DoorProcess, more: dict[str, Any]) -> tuple[Parts, Parts]:
    asked = ASKED | {"max_tokens": LENGTH, "extra_body": {"temperature": 0, **more}}
    with anthropic.Anthropic(base_url=door.url, api_key=door.key, max_retries=0) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    return parts(whole.content), parts(streamed.content)


def parts(blocks: list[Any]) -> Parts:
    thought, text = blocks
    return thought.thinking, text.text


def by_ollama(door: DoorProcess, more: dict[str, Any]) -> tuple[Parts, Parts]:
    asked = ASKED | {"options": {"temperature": 0, "num_predict": LENGTH}} | more
    client = ollama.Client(host=door.url, headers={"Authorization": f"Bearer {door.key}"})
    whole = client.chat(**asked).message
    lines = [line.message for line in client.chat(**asked, stream=True)]
    client._client.close()
    thought = "".join(line.thinking or "" for line in lines)
    return (whole.thinking, whole.content), (thought, "".join(line.content or "" for line in lines))


@pytest.mark.parametrize(
    ("ask", "more"),
    [
        (by_openai, {"thinking_budget_tokens": BUDGET}),
        (by_openai, {"reasoning_effort": "low"}),
        (by_anthropic, {"thinking": {"type": "enabled", "budget_tokens": BUDGET}}),
        (by_anthropic, {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}),
        (by_ollama, {"think": "low"}),
    ],
)
def test_a_thought_keeps_its_budget_and_the_answer_follows_streamed_as_whole(
    place: tuple[DoorProcess, RawClient], ask: Callable[..., tuple[Parts, Parts]], more: dict[str, Any]
) -> None:
    door, client = place
    whole, streamed = ask(door, more)
    assert streamed == whole
    thought, text = whole
    assert text
    # The same request without a door has exactly the budget's tokens in front of the end of its thought.
    params = {"messages": ASKED["messages"], "max_tokens": LENGTH, "temperature": 0, "reasoning_tokens": BUDGET}
    answer = client.result("infer", {**params, "return_tokens": True})
    closing = client.result("tokenize", {"text": "\n\n</think>\n\n"})["tokens"]
    assert answer["tokens"][BUDGET : BUDGET + len(closing)] == closing
    assert (thought, text) == (answer["reasoning"], answer["text"])


def test_without_a_budget_the_thought_takes_it_all(place: tuple[DoorProcess, RawClient]) -> None:
    door, _ = place
    (thought, text), _ = by_openai(door, {"reasoning_effort": "high"})
    assert thought
    assert not text
