"""Tool calls through the socket, on generated models whose templates are of each style that calls are written in."""

import json
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import jsonschema
import msgspec
import pytest

from car_protocol.answer import ToolCallDelta, joined_calls
from tests.e2e.support import CANARY, Json, RawClient, conversation
from tests.e2e.test_thinking import END, WORDS, serving, token_of, told
from tools.random_models.vocabulary import TEMPLATE

TEMPLATES = Path(__file__).parents[1] / "engine" / "prompt" / "templates"
QWEN = (TEMPLATES / "qwen3.jinja").read_text()
NAMED = (
    "{% if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for message in messages %}{% for call in message.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}{% endfor %}"
    "{{ '[INST]' ~ message.content ~ '[/INST]' }}{% endfor %}"
)
MODE: Json = {
    "type": "object",
    "properties": {"mode": {"enum": ["on", "off"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["mode"],
    "additionalProperties": False,
}
WHO: Json = {
    "type": "object",
    "properties": {"who": {"$ref": "#/$defs/name"}, "all": {"type": "boolean"}},
    "required": ["who", "all"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 6}},
}
SCHEMAS = {"set_mode": MODE, "greet": WHO}
MESSAGES = conversation(CANARY)
WILD: Json = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0}
# As tokens of their own; the blanks keep them out of what a grammar of calls allows.
ARGUMENTS = '{ "who": "Bo", "all": true }'
CALL = f'{{ "name": "greet", "arguments": {ARGUMENTS} }}'
MARKERS = ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[INST]", "[/INST]")


def tool(name: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": parameters}}


TOOLS = [tool(name, schema) for name, schema in SCHEMAS.items()]


class Style(NamedTuple):
    """A template, the control tokens of its model and its other tokens, a call in text as it is written, that text."""

    template: str
    control: tuple[str, ...]
    own: tuple[str, ...]
    written: tuple[str, ...]
    text: str


TAGS = ("<tool_call>", "</tool_call>")
HERMES = ("One", "<tool_call>", CALL, "</tool_call>", "Two")
STYLES = {
    "hermes": Style(QWEN, ("<|im_start|>", "<|im_end|>"), (*TAGS, CALL), HERMES, "OneTwo"),
    "hermes, control tokens": Style(QWEN, (*TAGS, "<|im_start|>", "<|im_end|>"), (CALL,), HERMES, "OneTwo"),
    "llama3": Style(
        (TEMPLATES / "llama3.jinja").read_text(),
        ("<|python_tag|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        (CALL,),
        ("<|python_tag|>", CALL),
        "",
    ),
    "mistral": Style(
        NAMED,
        (*MARKERS, "[ARGS]"),
        ("greet", ARGUMENTS),
        ("One", "[TOOL_CALLS]", "greet", "[ARGS]", ARGUMENTS),
        "One",
    ),
    "mistral, arrays": Style(
        (TEMPLATES / "mistral.jinja").read_text(),
        MARKERS,
        (f"[{CALL}]",),
        ("One", "[TOOL_CALLS]", f"[{CALL}]"),
        "One",
    ),
}


class Caller(NamedTuple):
    """A client of a model, and how the model writes calls."""

    client: RawClient
    style: Style


# Each of these differs in little from the one before it.
ALIKE = ("hermes, control tokens", "mistral, arrays")


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in STYLES]
)
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """A model of each style."""
    style = STYLES[request.param]
    tokens = {**WORDS, **dict.fromkeys(style.own, False), **dict.fromkeys(style.control, True)}
    with serving(style.template, tokens) as client:
        yield Caller(client, style)


def asked(**more: object) -> Json:
    """Return params with tools, under which the model ends as soon as it may."""
    return {"messages": MESSAGES, "tools": TOOLS, "logit_bias": {"1": 100}, "max_tokens": 200, **WILD, **more}


def checked(calls: list[Json]) -> list[str]:
    """Return the names of calls, each of which has to be valid."""
    for call in calls:
        assert (set(call), call["type"]) == ({"id", "type", "function"}, "function")
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in calls]


def called(chunks: list[Json]) -> list[Json]:
    """Return the calls that the pieces of a stream make up, as an answer has them."""
    pieces = [msgspec.convert(piece, ToolCallDelta) for chunk in chunks for piece in chunk.get("tool_calls", [])]
    calls: list[Json] = msgspec.to_builtins(joined_calls(pieces))
    return calls


def test_a_required_call_is_one_of_the_tools_and_valid(caller: Caller) -> None:
    assert token_of(caller.client, END) == "1"
    answers = [caller.client.result("infer", asked(tool_choice="required", seed=seed)) for seed in range(2)]
    for answer in answers:
        assert len(checked(answer["tool_calls"])) >= 1
        assert (answer["text"], answer["finish_reason"]) == ("", "stop")
    assert len({answer["tool_calls"][0]["id"] for answer in answers}) == len(answers)


def test_the_tool_that_is_named_is_the_one_that_is_called_once(caller: Caller) -> None:
    for name in SCHEMAS:
        for seed in range(2):
            params = asked(tool_choice={"name": name}, seed=seed, logit_bias={})
            answer = caller.client.result("infer", params)
            assert checked(answer["tool_calls"]) == [name]
            assert (answer["text"], answer["finish_reason"]) == ("", "stop")


def test_a_model_that_does_not_end_makes_one_call_after_another(caller: Caller) -> None:
    # A line break may stand before the end of a list, and then nothing but the end follows.
    ends = {token_of(caller.client, each): -100 for each in ("]", "\n")}
    unending = {"ignore_eos": True, "logit_bias": ends}
    answer = caller.client.result("infer", asked(tool_choice="required", seed=1, **unending))
    # The last one may be cut off.
    assert len(checked([call for call in answer["tool_calls"] if "invalid" not in call])) > 1
    assert len({call["id"] for call in answer["tool_calls"]}) == len(answer["tool_calls"])
    assert answer["finish_reason"] == "length"


def test_a_required_call_is_the_only_one_without_parallel_calls(caller: Caller) -> None:
    unending = {"ignore_eos": True, "logit_bias": {token_of(caller.client, "]"): -100}}
    params = asked(tool_choice="required", seed=1, parallel_tool_calls=False, **unending)
    answer = caller.client.result("infer", params)
    assert len(checked(answer["tool_calls"])) == 1
    assert answer["finish_reason"] == "stop"
    chunks, response = caller.client.stream(params)
    assert [call["function"] for call in called(chunks)] == [call["function"] for call in answer["tool_calls"]]
    assert response["result"]["finish_reason"] == "stop"


def test_an_answer_ends_with_its_first_call_without_parallel_calls(caller: Caller) -> None:
    client, style = caller
    params = told(client, *style.written, tools=TOOLS, parallel_tool_calls=False)
    answer = client.result("infer", params)
    assert (answer["text"], answer["finish_reason"]) == (style.text.removesuffix("Two"), "stop")
    assert checked(answer["tool_calls"]) == ["greet"]
    chunks, response = client.stream(params)
    assert "".join(chunk["text"] for chunk in chunks) == answer["text"]
    assert (checked(called(chunks)), response["result"]["finish_reason"]) == (["greet"], "stop")
    # The text after the call is not computed.
    longer = client.result("infer", {**params, "parallel_tool_calls": True})
    rest = longer["usage"]["completion_tokens"] - answer["usage"]["completion_tokens"]
    assert rest >= len(("Two", END) if "Two" in style.written else (END,))


def test_a_call_is_streamed_as_it_is_written_and_is_the_call_of_the_whole_answer(caller: Caller) -> None:
    client = caller.client
    params = asked(tool_choice="required", seed=5, return_tokens=True)
    chunks, response = client.stream(params)
    assert [chunk["seq"] for chunk in chunks] == list(range(response["result"]["usage"]["completion_tokens"]))
    assert {chunk["text"] for chunk in chunks} == {""}
    places = [place for place, chunk in enumerate(chunks) if "tool_calls" in chunk]
    assert len(places) > 1
    # What was written so far has the piece that is sent.
    tokens = list(chain.from_iterable(chunk["tokens"] for chunk in chunks[: places[-1] + 1]))
    written = client.result("detokenize", {"tokens": tokens, "special": True})["text"]
    calls = called(chunks)
    assert calls[-1]["function"]["arguments"] in written
    assert written[-1] in "}]"
    same = client.result("infer", params)["tool_calls"]
    assert [call["function"] for call in same] == [call["function"] for call in calls]
    assert same[0]["id"] != calls[0]["id"]


def test_a_stream_of_nothing_but_a_call_begins_with_its_name(caller: Caller) -> None:
    chunks, response = caller.client.stream(asked(tool_choice={"name": "greet"}, seed=2))
    (first, *_), *others = [chunk["tool_calls"] for chunk in chunks]
    assert (first["index"], first["name"], first["id"][:5]) == (0, "greet", "call_")
    assert all(set(piece) == {"index", "arguments"} for pieces in others for piece in pieces)
    assert checked(called(chunks)) == ["greet"]
    assert (response["result"]["chunks"], "tool_calls" in response["result"]) == (len(chunks), False)


def test_a_call_of_the_models_own_accord_is_apart_from_the_text_around_it(caller: Caller) -> None:
    client, style = caller
    params = told(client, *style.written, tools=TOOLS)
    answer = client.result("infer", params)
    assert answer["text"] == style.text
    assert [call["function"] for call in answer["tool_calls"]] == [{"name": "greet", "arguments": ARGUMENTS}]
    chunks, _ = client.stream(params)
    assert "".join(chunk["text"] for chunk in chunks) == style.text
    assert checked(called(chunks)) == ["greet"]
    order = [member for chunk in chunks for member in ("text", "tool_calls") if chunk.get(member)]
    assert [member for member, _ in groupby(order)] == {
        "OneTwo": ["text", "tool_calls", "text"],
        "One": ["text", "tool_calls"],
        "": ["tool_calls"],
    }[style.text]


def test_a_random_model_that_may_call_only_talks(caller: Caller) -> None:
    for seed in range(3):
        answer = caller.client.result("infer", {"messages": MESSAGES, "tools": TOOLS, "seed": seed, "max_tokens": 20})
        assert answer["text"]
        assert "tool_calls" not in answer


def test_without_a_choice_there_are_no_tools_and_no_calls(caller: Caller) -> None:
    client, style = caller
    toolless, none, auto = (
        client.result("infer", told(client, *style.written, **choice))
        for choice in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS})
    )
    assert none["usage"]["prompt_tokens"] == toolless["usage"]["prompt_tokens"] < auto["usage"]["prompt_tokens"]
    assert "Bo" in none["text"] == toolless["text"]
    assert "tool_calls" not in none


def test_tools_count_as_infer_counts_them(caller: Caller) -> None:
    params = {"messages": MESSAGES, "tools": TOOLS, "template_args": {"enable_thinking": True}}
    usage = caller.client.result("infer", {**params, "max_tokens": 1})["usage"]
    counted = caller.client.result("tokenize", {**params, "count_only": True})
    assert counted == {"count": usage["prompt_tokens"]}
    assert counted != caller.client.result("tokenize", {"messages": MESSAGES, "count_only": True})


def test_calls_and_their_answers_in_the_history_reach_the_template(caller: Caller) -> None:
    def history(**call: object) -> list[Json]:
        made = {"id": "call12345", "type": "function", "function": {"name": "greet", "arguments": ARGUMENTS}}
        turn = {"role": "assistant", "tool_calls": [{**made, **call}]}
        return [*MESSAGES, turn, {"role": "tool", "tool_call_id": "call12345", "content": "it is done"}]

    client = caller.client
    answer = client.result("infer", asked(messages=history(), tool_choice={"name": "greet"}))
    assert checked(answer["tool_calls"]) == ["greet"]
    alone = client.result("infer", asked(tool_choice={"name": "greet"}))
    assert answer["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"] + len("it is done") // 4
    broken = client.call("infer", asked(messages=history(function={"name": "greet", "arguments": "{"})))["error"]
    assert (broken["code"], broken["data"]["param"]) == (-32602, "messages")


def test_stop_strings_do_not_reach_into_a_call(caller: Caller) -> None:
    answer = caller.client.result("infer", asked(tool_choice={"name": "greet"}, stop=["who", "a", "{"]))
    assert checked(answer["tool_calls"]) == ["greet"]
    assert "stop" not in answer


def test_a_call_that_is_cut_off_before_its_name_shows_nothing(caller: Caller) -> None:
    answer = caller.client.result("infer", asked(tool_choice="required", max_tokens=2))
    assert (answer["finish_reason"], answer["text"], "tool_calls" in answer) == ("length", "", False)


def test_a_call_that_is_cut_off_after_its_name_is_a_part_of_one(caller: Caller) -> None:
    params = asked(tool_choice={"name": "greet"}, seed=5)
    (whole,) = caller.client.result("infer", params)["tool_calls"]
    seen = set[str]()
    for most in range(2, 60, 3):
        answer = caller.client.result("infer", {**params, "max_tokens": most})
        assert answer["text"] == ""
        for call in answer.get("tool_calls", []):
            assert call["function"]["name"] == "greet"
            # The last character may be incomplete.
            assert whole["function"]["arguments"].startswith(call["function"]["arguments"].rstrip("\ufffd"))
            seen.add(f"{answer['finish_reason']} {call.get('invalid', '')}")
    assert {"length arguments", "stop "} <= seen


@pytest.mark.parametrize("schema", [{"properties": {"a": {"type": "frob"}}}, {"$ref": "#/no"}, {"properties": 3}])
def test_a_schema_that_cannot_bind_a_call_is_refused(caller: Caller, schema: Json) -> None:
    for choice in ("required", {"name": "broken"}):
        params = asked(tools=[*TOOLS, tool("broken", schema)], tool_choice=choice)
        error = caller.client.call("infer", params)["error"]
        assert (error["code"], error["data"]["param"]) == (-32602, "tools")


@pytest.fixture(scope="module")
def plain() -> Iterator[RawClient]:
    """A client of a model whose template knows no tools."""
    with serving(TEMPLATE, {}) as client:
        yield client


@pytest.mark.parametrize(
    ("params", "member"),
    [
        ({"prompt": CANARY, "tools": TOOLS}, "tools"),
        ({"tokens": [5], "tools": TOOLS}, "tools"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "tools": TOOLS, "tool_choice": {"name": "other"}}, "tool_choice"),
        ({"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "grammar": "root ::= .*"}, "tool_choice"),
        ({"messages": MESSAGES, "tools": [{**TOOLS[0], "type": "other"}]}, "tools"),
        ({"messages": MESSAGES, "tools": [tool("a name", {})]}, "tools"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_the_name_of_their_member(
    plain: RawClient, params: Json, member: str
) -> None:
    error = plain.call("infer", params)["error"]
    assert error["code"] == -32602
    assert error["data"]["param"].startswith(member)


@pytest.mark.parametrize("choice", ["auto", "required", {"name": "greet"}])
def test_a_template_without_tools_lacks_them(plain: RawClient, choice: object) -> None:
    error = plain.call("infer", asked(tool_choice=choice))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "tools")
    assert plain.result("infer", asked(tool_choice="none"))["finish_reason"] == "stop"


@pytest.mark.slow
def test_a_model_without_a_template_lacks_it() -> None:
    with serving("", {}) as client:
        error = client.call("infer", {"messages": MESSAGES})["error"]
        assert (error["code"], error["data"]["lacks"]) == (1004, "chat_template")
        assert client.result("infer", {"prompt": CANARY, "max_tokens": 1})["finish_reason"] == "length"


@pytest.mark.slow
def test_a_forced_call_waits_for_the_end_of_a_thought_and_a_call_in_one_is_none() -> None:
    tokens = {"<think>": False, "</think>": False, CALL: False, **dict.fromkeys(TAGS, False), **WORDS}
    written = ("One", "<tool_call>", CALL, "</tool_call>", "</think>")
    for template, thought in ((QWEN, ("<think>", *written)), (QWEN + "{{ '<think>\n' }}", written)):
        with serving(template, tokens) as client:
            for choice in ("required", {"name": "greet"}):
                chunks, _ = client.stream(told(client, *thought, tools=TOOLS, tool_choice=choice))
                order = [member for chunk in chunks for member in ("reasoning", "tool_calls") if member in chunk]
                assert [member for member, _ in groupby(order)] == ["reasoning", "tool_calls"]
                assert "".join(chunk.get("reasoning", "") for chunk in chunks) == "".join(written[:-1])
                assert len(checked(called(chunks))) == 1
                assert {chunk["text"] for chunk in chunks} == {""}
            free = client.result("infer", told(client, *thought, "Two", tools=TOOLS))
            assert (free["text"], "tool_calls" in free) == ("Two", False)
