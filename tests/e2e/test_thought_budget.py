"""`reasoning_tokens` through the socket: thoughts are bounded, and answers, forms and calls behind them are whole."""

import json
from collections.abc import Iterator

import jsonschema
import msgspec
import pytest

from car_protocol.answer import ToolCallDelta, joined_calls
from tests.e2e.support import Json, RawClient
from tests.e2e.test_thinking import MESSAGES, TURNS, WORDS, joined, serving, token_of, told

TOOLS = "{% if tools %}{{ '<tool_call>' ~ tools | tojson ~ '</tool_call>' }}{% endif %}"
OWN = dict.fromkeys(("<think>", "</think>", "<tool_call>", "</tool_call>"), False) | WORDS
GREET: Json = {
    "type": "object",
    "properties": {"who": {"enum": ["Bo", "Al"]}, "all": {"type": "boolean"}},
    "required": ["who", "all"],
    "additionalProperties": False,
}
TOOL: Json = {"type": "function", "function": {"name": "greet", "parameters": GREET}}

LONG: Json = {"repeat_last_n": 64}  # the words in front of the end of a thought still count as written


@pytest.fixture(scope="module", params=["the template opens a thought", "the model opens a thought"])
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A client of a model that thinks, and never closes a thought by itself."""
    opens = request.param == "the template opens a thought"
    end = "{{ '<think>\n' }}" if opens else "{# <think> #}"
    with serving(TOOLS + TURNS + end, OWN) as client:
        yield client


@pytest.fixture
def opening(request: pytest.FixtureRequest) -> list[str]:
    """What the model writes in front of its thought."""
    return [] if "template opens" in request.node.callspec.id else ["<think>"]


def closing(client: RawClient) -> list[int]:
    """Return the tokens of the end that the bound writes."""
    tokens: list[int] = client.result("tokenize", {"text": "\n\n</think>\n\n"})["tokens"]
    return tokens


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_thought_has_its_tokens_and_the_answer_follows(client: RawClient, opening: list[str], most: int) -> None:
    params = told(client, *opening, "One", "Two", "Three", reasoning_tokens=most, return_tokens=True, **LONG)
    answer = client.result("infer", params)
    words = ["One", "Two", "Three"]
    assert (answer.get("reasoning", ""), answer["text"]) == ("".join(words[:most]), "".join(words[most:]))
    assert answer["finish_reason"] == "stop"
    begun = len(opening) + most
    assert answer["tokens"][begun : begun + len(closing(client))] == closing(client)
    assert answer["usage"]["completion_tokens"] == len(answer["tokens"])
    chunks, response = client.stream(params)
    assert (joined(chunks, "reasoning"), joined(chunks, "text")) == (answer.get("reasoning", ""), answer["text"])
    assert [token for chunk in chunks for token in chunk["tokens"]] == answer["tokens"]
    assert response["result"]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]


def test_a_thought_that_fits_is_as_it_is_without_a_bound(client: RawClient, opening: list[str]) -> None:
    free = told(client, *opening, "One", "</think>", "Two", return_tokens=True)
    bound = {**free, "reasoning_tokens": 2}
    assert client.result("infer", bound)["tokens"] == client.result("infer", free)["tokens"]


def test_random_thoughts_keep_their_bound_streamed_as_whole(client: RawClient, opening: list[str]) -> None:
    close = int(token_of(client, "</think>"))
    cut = 0
    for seed in range(12):
        most = seed
        params: Json = {"messages": MESSAGES, "seed": seed, "temperature": 2, "max_tokens": 40, "ignore_eos": True}
        params |= {"reasoning_tokens": most, "return_tokens": True, "logit_bias": {str(close): 4}}
        if opening:
            params["logit_bias"][token_of(client, "<think>")] = 100
            params |= {"repeat_penalty": 10, "repeat_last_n": 64}
        answer = client.result("infer", params)
        thought = answer["tokens"][len(opening) :].index(close)
        assert thought <= most + len(closing(client)) - 1
        cut += thought >= most
        chunks, _ = client.stream(params)
        assert (joined(chunks, "reasoning"), joined(chunks, "text")) == (answer.get("reasoning", ""), answer["text"])
    assert cut > 3


@pytest.mark.parametrize("most", [0, 2])
def test_a_form_and_a_call_behind_a_bounded_thought_are_valid(client: RawClient, opening: list[str], most: int) -> None:
    params = told(client, *opening, "One", "Two", "Three", reasoning_tokens=most, **LONG)
    answer = client.result("infer", {**params, "json_schema": GREET})
    jsonschema.validate(json.loads(answer["text"]), GREET)
    assert answer.get("reasoning", "") == "OneTwo"[: 3 * most]
    called = {**params, "tools": [TOOL], "tool_choice": "required"}
    answer = client.result("infer", called)
    (call,) = answer["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), GREET)
    assert answer["text"] == ""
    chunks, _ = client.stream(called)
    deltas = [msgspec.convert(delta, ToolCallDelta) for chunk in chunks for delta in chunk.get("tool_calls", [])]
    assert [msgspec.to_builtins(each.function) for each in joined_calls(deltas)] == [call["function"]]


def test_a_bound_means_nothing_to_a_prompt_without_a_conversation(client: RawClient) -> None:
    params: Json = {"prompt": "One", "temperature": 0, "max_tokens": 8, "return_tokens": True}
    assert (
        client.result("infer", {**params, "reasoning_tokens": 0})["tokens"] == client.result("infer", params)["tokens"]
    )
