"""Reasoning through the socket: apart from the answer, on generated models with scripted answers."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.support import CANARY, Json, RawClient, conversation, running
from tools.random_model import generate

END = "<|end|>"
# Tokens of their own whose logits are 0, so that biases alone decide when they come.
WORDS = dict.fromkeys(("One", "Two", "Three"), False)
MESSAGES = conversation(CANARY)
TURNS = (
    "{% for message in messages %}{{ message.role ~ ': ' ~ (message.reasoning_content or '') ~ message.content }}"
    "{% endfor %}{{ 'assistant: ' }}"
)
# What it says where thinking is off is not what the tests' models write.
ASKED = "{% if enable_thinking is defined and not enable_thinking %}{{ 'at once: ' }}{% endif %}{# <think> #}"


class Thinker(NamedTuple):
    """A client of a model that thinks, and the tags that the model writes."""

    client: RawClient
    open: str
    close: str


@contextmanager
def serving(template: str, extra_tokens: Mapping[str, bool]) -> Iterator[RawClient]:
    """Serve a generated model and connect to it."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "model.gguf"
        generate(path, "tiny", "q8_0", template=template, extra_tokens=extra_tokens)
        with running(Path(name), "--model", str(path), "--capacity", "2") as daemon, daemon.connect() as client:
            yield client


def token_of(client: RawClient, text: str) -> str:
    """Return the one token of a text, as `logit_bias` names it."""
    params = {"text": text, "add_special": False, "parse_special": True}
    (token,) = client.result("tokenize", params)["tokens"]
    return str(token)


def told(client: RawClient, *texts: str, **more: object) -> Json:
    """Return params under which the model writes these tokens, each once, and ends; a grammar lets it pass some."""
    tokens = [token_of(client, text) for text in (*texts, END)]
    # A token that was written is penalized below the one that is to come next.
    biases = {token: 100 - 5 * place for place, token in enumerate(tokens)}
    once: Json = {"temperature": 0, "repeat_penalty": 10, "repeat_last_n": len(tokens), "logit_bias": biases}
    return {"messages": MESSAGES, **once, **more}


@pytest.fixture(scope="module", params=["tokens of their own", "control tokens"])
def thinker(request: pytest.FixtureRequest) -> Iterator[Thinker]:
    """A model that opens its thoughts itself."""
    control = request.param == "control tokens"
    opening, closing = ("[THINK]", "[/THINK]") if control else ("<think>", "</think>")
    with serving(TURNS + ASKED.replace("<think>", opening), {opening: control, closing: control, **WORDS}) as client:
        yield Thinker(client, opening, closing)


@pytest.fixture(scope="module")
def opened() -> Iterator[RawClient]:
    """A client of a model whose template opens a thought for it."""
    with serving(TURNS + "{{ '<think>\n' }}", {"<think>": False, "</think>": False, **WORDS}) as client:
        yield client


def joined(chunks: list[Json], member: str) -> str:
    return "".join(chunk.get(member, "") for chunk in chunks)


def test_a_thought_is_apart_from_the_text(thinker: Thinker) -> None:
    client, opening, closing = thinker
    answer = client.result("infer", told(client, opening, "One", "Two", closing, "Three"))
    assert (answer["reasoning"], answer["text"], answer["finish_reason"]) == ("OneTwo", "Three", "stop")


def test_a_stream_has_thoughts_beside_its_text(thinker: Thinker) -> None:
    client, opening, closing = thinker
    chunks, response = client.stream(told(client, opening, "One", "Two", closing, "Three"))
    assert (joined(chunks, "reasoning"), joined(chunks, "text")) == ("OneTwo", "Three")
    assert all(chunk["text"] == "" for chunk in chunks if "reasoning" in chunk)
    assert [chunk["seq"] for chunk in chunks] == list(range(response["result"]["chunks"]))
    assert not {"reasoning", "text"} & response["result"].keys()


def test_the_parts_of_a_stream_add_up_where_every_token_is_a_chunk(thinker: Thinker) -> None:
    client, opening, closing = thinker
    params = told(client, opening, "One", closing, "Two", return_tokens=True, logprobs=0)
    chunks, response = client.stream(params)
    tokens = [token for chunk in chunks for token in chunk["tokens"]]
    assert [chunk["seq"] for chunk in chunks] == list(range(len(tokens)))
    assert [each["token"] for chunk in chunks for each in chunk["logprobs"]] == tokens
    assert [chunk.get("reasoning", "") for chunk in chunks] == ["", "One", "", "", ""]
    assert [chunk["text"] for chunk in chunks] == ["", "", "", "Two", ""]
    assert response["result"]["usage"]["completion_tokens"] == len(tokens)


def test_tokens_logprobs_and_usage_are_of_the_thought_too(thinker: Thinker) -> None:
    client, opening, closing = thinker
    answer = client.result("infer", told(client, opening, "One", closing, "Two", return_tokens=True, logprobs=2))
    written = [opening, "One", closing, "Two", END]
    assert [each["text"] for each in answer["logprobs"]] == written
    assert [str(token) for token in answer["tokens"]] == [token_of(client, text) for text in written]
    assert answer["usage"]["completion_tokens"] == len(written)


def test_thoughts_that_are_kept_stay_in_the_text_with_their_tags(thinker: Thinker) -> None:
    client, opening, closing = thinker
    params = told(client, opening, "One", closing, "Two", reasoning="keep")
    answer = client.result("infer", params)
    assert answer["text"] == f"{opening}One{closing}Two"
    chunks, response = client.stream(params)
    assert joined(chunks, "text") == answer["text"]
    assert not any("reasoning" in each for each in (answer, response["result"], *chunks))


def test_an_answer_to_a_bare_prompt_is_not_split(thinker: Thinker) -> None:
    client, opening, closing = thinker
    params = told(client, opening, "One", closing, "Two", messages=None, prompt=CANARY)
    answer = client.result("infer", {name: value for name, value in params.items() if value is not None})
    assert answer["text"] in (f"{opening}One{closing}Two", "OneTwo"), "control tokens have no text"
    assert "reasoning" not in answer


def test_that_thinking_is_off_is_said_to_the_template(thinker: Thinker) -> None:
    client = thinker.client
    ways: list[Json] = [{}, {"reasoning": "off"}, {"template_args": {"enable_thinking": False}}]
    answers = [client.result("infer", told(client, "One", **way)) for way in ways]
    assert [answer["text"] for answer in answers] == ["One"] * 3
    free, off, by_hand = (answer["usage"]["prompt_tokens"] for answer in answers)
    assert off == by_hand > free


def test_a_model_that_thinks_although_it_should_not_has_its_thought_apart(thinker: Thinker) -> None:
    client, opening, closing = thinker
    answer = client.result("infer", told(client, opening, "One", closing, "Two", reasoning="off"))
    assert (answer["reasoning"], answer["text"]) == ("One", "Two")


def test_a_thought_of_an_earlier_turn_reaches_the_template(thinker: Thinker) -> None:
    client = thinker.client
    turn: Json = {"role": "assistant", "content": "yes"}
    plain, thoughtful = (
        client.result("infer", told(client, "One", messages=[*MESSAGES, each, *MESSAGES]))["usage"]["prompt_tokens"]
        for each in (turn, {**turn, "reasoning": "Two"})
    )
    assert thoughtful > plain


def test_stop_strings_count_in_the_text_alone(thinker: Thinker) -> None:
    client, opening, closing = thinker
    params = told(client, opening, "One", closing, "Two", "Three", stop=["One", "Three", opening[1:-1]])
    answer = client.result("infer", params)
    assert (answer["reasoning"], answer["text"]) == ("One", "Two")
    assert (answer["stop"], answer["finish_reason"]) == ("Three", "stop")


@pytest.mark.parametrize("form", [{"json_schema": {"enum": ["yes"]}}, {"grammar": r'root ::= "\"yes\""'}])
def test_a_grammar_binds_what_follows_the_thought_alone(thinker: Thinker, form: Json) -> None:
    client, opening, closing = thinker
    answer = client.result("infer", told(client, opening, "One", closing, "Two", **form))
    assert (answer["reasoning"], answer["text"], answer["finish_reason"]) == ("One", '"yes"', "stop")
    thoughtless = client.result("infer", told(client, "One", **form))
    assert thoughtless["text"] == '"yes"'
    assert "reasoning" not in thoughtless


def test_tokens_may_run_out_inside_a_thought(thinker: Thinker) -> None:
    client, opening, closing = thinker
    for most, reasoning in ((1, None), (2, "One"), (3, "OneTwo"), (4, "OneTwo")):
        answer = client.result("infer", told(client, opening, "One", "Two", closing, "Three", max_tokens=most))
        assert (answer.get("reasoning"), answer["text"], answer["finish_reason"]) == (reasoning, "", "length")
        assert answer["usage"]["completion_tokens"] == most


def test_what_follows_an_opened_thought_is_reasoning(opened: RawClient) -> None:
    answer = opened.result("infer", told(opened, "One", "</think>", "Two"))
    assert (answer["reasoning"], answer["text"]) == ("One", "Two")
    endless = opened.result("infer", told(opened, "One", "Two"))
    assert (endless["reasoning"], endless["text"], endless["finish_reason"]) == ("OneTwo", "", "stop")


def test_an_opened_thought_is_closed_where_thinking_is_off(opened: RawClient) -> None:
    thinking = opened.result("infer", told(opened, "One"))
    answer = opened.result("infer", told(opened, "One", reasoning="off"))
    assert (thinking["reasoning"], thinking["text"]) == ("One", "")
    assert answer["text"] == "One"
    assert "reasoning" not in answer
    closing = opened.result("tokenize", {"text": "\n</think>\n\n", "add_special": False})["tokens"]
    assert answer["usage"]["prompt_tokens"] == thinking["usage"]["prompt_tokens"] + len(closing)


def test_an_opened_thought_that_is_kept_is_text_from_the_start(opened: RawClient) -> None:
    answer = opened.result("infer", told(opened, "One", "</think>", "Two", reasoning="keep"))
    assert answer["text"] == "One</think>Two"
    assert "reasoning" not in answer


def test_a_grammar_waits_for_the_end_of_an_opened_thought(opened: RawClient) -> None:
    form: Json = {"json_schema": {"enum": ["yes"]}}
    answer = opened.result("infer", told(opened, "One", "</think>", "Two", **form))
    assert (answer["reasoning"], answer["text"]) == ("One", '"yes"')
    off = opened.result("infer", told(opened, "One", "</think>", "Two", reasoning="off", **form))
    assert off["text"] == '"yes"'
    assert "reasoning" not in off


def test_random_thoughts_are_the_same_however_they_are_asked_for(opened: RawClient) -> None:
    closed = 0
    for seed in range(12):
        biases = {token_of(opened, "</think>"): 6}
        params: Json = {"messages": MESSAGES, "seed": seed, "temperature": 2, "logit_bias": biases, "max_tokens": 40}
        kept = opened.result("infer", {**params, "reasoning": "keep"})["text"]
        reasoning, tag, text = kept.partition("</think>")
        closed += bool(tag)
        expected = (reasoning.strip() if tag else reasoning.lstrip(), text.lstrip())
        answer = opened.result("infer", params)
        assert (answer.get("reasoning", ""), answer["text"]) == expected
        chunks, _ = opened.stream(params)
        assert (joined(chunks, "reasoning"), joined(chunks, "text")) == expected
    assert 0 < closed < 12
