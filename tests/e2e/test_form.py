"""The form of an answer through the socket: grammars, schemas, samplers and what comes beside the text."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.e2e.support import KNOWN, LONG, Daemon, Json, RawClient, greedy

WILD: Json = {"temperature": 3, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 300}
PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}


def text_of(chunks: list[Json]) -> str:
    return "".join(chunk["text"] for chunk in chunks)


def test_an_answer_under_a_grammar_is_of_the_grammar_and_ends_with_it(client: RawClient) -> None:
    for seed in range(5):
        params = {"prompt": "daemon", "grammar": 'root ::= ("yes" | "no") "!"', "seed": seed, **WILD}
        answer = client.result("infer", params)
        assert answer["text"] in ("yes!", "no!")
        assert answer["finish_reason"] == "stop"


def test_an_answer_under_a_schema_is_valid_and_the_same_as_a_stream(client: RawClient) -> None:
    for seed in range(5):
        params = {"prompt": "daemon", "json_schema": PERSON, "seed": seed, **WILD}
        answer = client.result("infer", params)
        Draft202012Validator(PERSON).validate(json.loads(answer["text"]))
        chunks, response = client.stream(params)
        assert text_of(chunks) == answer["text"]
        assert response["result"]["finish_reason"] == answer["finish_reason"] == "stop"


def test_a_trained_answer_that_fits_its_grammar_is_not_changed_by_it(client: RawClient) -> None:
    for known in KNOWN[:8]:
        free = client.result("infer", greedy(known))
        bound = client.result("infer", greedy(known, grammar="root ::= .*"))
        assert bound["text"] == free["text"] == known.answer


@pytest.mark.parametrize(
    ("params", "member"),
    [
        ({"grammar": "root ::= nowhere"}, "grammar"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": ""}, "grammar"),
        ({"json_schema": {"type": "frob"}}, "json_schema"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema"),
        ({"json_schema": {"type": "string", "pattern": "("}}, "json_schema"),
        ({"json_schema": {"type": "integer", "multipleOf": 12345.678}}, "json_schema"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_bind_an_answer_is_refused_by_the_name_of_its_member(
    client: RawClient, params: Json, member: str
) -> None:
    error = client.call("infer", {"prompt": "daemon", **params})["error"]
    assert error["code"] == -32602
    assert member in json.dumps(error)


def test_a_bad_grammar_is_refused_although_nothing_could_run_now(small: RawClient) -> None:
    running = [small.send("infer_stream", {"prompt": "daemon", "ignore_eos": True, "max_tokens": 4000}) for _ in "123"]
    error = small.call("infer", {"prompt": "daemon", "grammar": "root ::= nowhere"})["error"]
    assert error["code"] == -32602
    for request_id in running:
        small.notify("$/cancelRequest", {"id": request_id})


def test_logprobs_are_logarithms_of_probabilities_the_likeliest_first(client: RawClient) -> None:
    answer = client.result("infer", greedy(KNOWN[0], logprobs=3, return_tokens=True))
    assert [one["token"] for one in answer["logprobs"]] == answer["tokens"]
    for one in answer["logprobs"]:
        assert one["top"][0]["token"] == one["token"], "greedy takes the likeliest"
        values = [choice["logprob"] for choice in one["top"]]
        assert values == sorted(values, reverse=True)
        assert one["logprob"] == values[0] <= 0
        assert sum(math.exp(value) for value in values) <= 1 + 1e-6


def test_logprobs_come_with_the_chunks_of_their_tokens_under_a_grammar_too(client: RawClient) -> None:
    params = {"prompt": "daemon", "grammar": 'root ::= "abc"', "logprobs": 0, "return_tokens": True}
    chunks, _ = client.stream(params)
    tokens = [token for chunk in chunks for token in chunk.get("tokens", [])]
    said = [one for chunk in chunks for one in chunk.get("logprobs", [])]
    assert [one["token"] for one in said] == tokens
    assert "".join(one["text"] for one in said) == "abc"
    assert all(one["top"] == [] for one in said)


def test_biases_force_and_forbid(client: RawClient) -> None:
    (token,) = client.result("tokenize", {"text": "q", "add_special": False})["tokens"]
    forced = client.result("infer", {"prompt": "daemon", "logit_bias": {str(token): 100}, "max_tokens": 5})
    assert forced["text"] == "qqqqq"
    first = client.result("infer", greedy(KNOWN[0], return_tokens=True))["tokens"][0]
    other = client.result("infer", greedy(KNOWN[0], return_tokens=True, logit_bias={str(first): -100}))
    assert first not in other["tokens"]


def test_a_stop_string_of_several_tokens_ends_the_text_before_it(client: RawClient) -> None:
    params: Json = {"prompt": "daemon", "grammar": 'root ::= "one two three"', "return_tokens": True}
    for stop in ("two", "e t", " two three", "three"):
        chunks, response = client.stream({**params, "stop": [stop]})
        assert text_of(chunks) == "one two three".split(stop)[0]
        assert (response["result"]["stop"], response["result"]["finish_reason"]) == (stop, "stop")


@pytest.mark.parametrize(
    "sampling",
    [
        {"xtc": {"probability": 1, "threshold": 0.1}},
        {"dry": {"multiplier": 0.8}},
        {"dry": {"multiplier": 2, "sequence_breakers": []}},
        {"mirostat": {"version": 1}},
        {"mirostat": {"version": 2, "tau": 3, "eta": 0.2}},
        {"typical_p": 0.5, "ignore_eos": True},
        {"temperature": 1e-40},
        {"top_n_sigma": 1, "repeat_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 1},
    ],
)
def test_every_sampler_gives_an_answer_and_the_same_one_for_its_seed(client: RawClient, sampling: Json) -> None:
    params = {"prompt": "daemon", "seed": 3, "max_tokens": 20, "return_tokens": True, **sampling}
    first = client.result("infer", params)
    assert first["tokens"]
    assert client.result("infer", params)["tokens"] == first["tokens"]


@pytest.mark.slow
def test_a_seed_decides_alone_and_among_others(daemon: Daemon) -> None:
    shapes: list[dict[str, Any]] = [
        {"messages": greedy(KNOWN[0])["messages"], "seed": 11, "temperature": 1.5, "top_k": 0},
        {"prompt": "daemon", "seed": 12, **WILD, "json_schema": PERSON},
        {"prompt": "daemon", "seed": 13, "max_tokens": 40, "grammar": "root ::= [a-z ]+ [.]"},
        *(greedy(known, logprobs=1) for known in LONG[:5]),
    ]

    def ask(params: Json) -> str:
        with daemon.connect() as client:
            text: str = client.result("infer", params)["text"]
            return text

    alone = [ask(params) for params in shapes]
    for _ in range(3):
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(ask, shapes)) == alone
