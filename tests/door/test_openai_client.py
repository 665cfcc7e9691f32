"""OpenAI's Python client, unmodified, over a loopback port and over the Unix socket."""

import base64
import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, model
from tests.door.support import DoorProcess, door_before
from tests.e2e.support import KNOWN, conversation
from tests.engine.images.sounds import wav

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2")
pydantic = pytest.importorskip("pydantic")
SHORT = next(known for known in KNOWN if not known.long)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place":"Vienna"}'}}
PIECES = [
    {"index": 0, "id": "call_1", "name": "weather", "arguments": ""},
    {"index": 0, "arguments": '{"place":'},
    {"index": 0, "arguments": '"Vienna"}'},
]
SOUND = base64.b64encode(wav(1, 440)).decode()
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def connected(door: DoorProcess, way: str, **more: object) -> Any:
    """Return a client by one of the two ways."""
    if way == "port":
        return openai.OpenAI(base_url=f"{door.url}/v1", api_key=door.key, **more)
    transport = httpx.HTTPTransport(uds=str(door.socket))
    http = openai.DefaultHttpxClient(transport=transport)
    return openai.OpenAI(base_url="http://card/v1", api_key="unused", http_client=http, **more)


@pytest.fixture(params=["port", "socket"])
def client(request: pytest.FixtureRequest, door: DoorProcess) -> Iterator[Any]:
    """A client of the door before the real daemon."""
    with connected(door, request.param, max_retries=0) as client:
        yield client


@pytest.fixture
def scripted_client(scripted_door: DoorProcess) -> Iterator[Any]:
    """A client of the door before the fake daemon."""
    with connected(scripted_door, "port", max_retries=0) as client:
        yield client


@pytest.fixture
def before_names(fake: FakeDaemon, folder: Path) -> Iterator[Any]:
    """A client of a door before a daemon whose model has a name of the hub."""
    fake.answers["models/list"] = {"models": [model(name="org/name:tag")]}
    with door_before(folder, fake.path) as door, connected(door, "port", max_retries=0) as client:
        yield client


def test_a_chat_is_answered(client: Any) -> None:
    answer = client.chat.completions.create(
        model="guide", messages=conversation(SHORT.question), temperature=0, max_completion_tokens=200
    )
    (choice,) = answer.choices
    assert choice.message.content == SHORT.answer
    assert choice.finish_reason == "stop"
    assert answer.model == "guide"
    assert answer.system_fingerprint.startswith("card-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_has_the_same_text_and_ends_with_its_usage(client: Any) -> None:
    stream = client.chat.completions.create(
        model="guide",
        messages=conversation(SHORT.question),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SHORT.answer
    assert {chunk.model for chunk in chunks} == {"guide"}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_an_answer_follows_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"figure": {"enum": [7]}}, "required": ["figure"]}
    answer = client.chat.completions.create(
        model="guide",
        messages=conversation(SHORT.question),
        response_format={"type": "json_schema", "json_schema": {"name": "seven", "schema": schema, "strict": True}},
    )
    assert json.loads(answer.choices[0].message.content) == {"figure": 7}


def test_log_probabilities_come_with_each_token(client: Any) -> None:
    request = {"model": "guide", "messages": conversation(SHORT.question), "max_tokens": 3, "temperature": 0}
    whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
    tokens = whole.choices[0].logprobs.content
    assert len(tokens) == 3
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    streamed = client.chat.completions.create(**request, logprobs=True, top_logprobs=2, stream=True)
    pieces = [piece.choices[0].logprobs.content for piece in streamed if piece.choices[0].logprobs]
    assert [token.token for piece in pieces for token in piece] == [token.token for token in tokens]


def test_completions_continue_a_prompt(client: Any) -> None:
    request = {"model": "guide", "prompt": "A daemon", "max_tokens": 4, "temperature": 0}
    whole = client.completions.create(**request, logprobs=1, echo=True)
    assert whole.choices[0].text.startswith("A daemon")
    assert len(whole.choices[0].logprobs.tokens) == 4
    streamed = client.completions.create(**request, stream=True)
    assert "A daemon" + "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_several_prompts_are_answered_as_each_of_them_alone(client: Any) -> None:
    request = {"model": "guide", "max_tokens": 5, "temperature": 0, "n": 2, "echo": True, "logprobs": 1}
    prompts = ["A daemon", "Several apps share", "A model"]
    together = client.completions.create(prompt=prompts, **request)
    alone = [client.completions.create(prompt=prompt, **request) for prompt in prompts]
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == [choice.text for one in alone for choice in one.choices]
    assert [choice.logprobs.text_offset[0] for choice in together.choices] == [8, 8, 18, 18, 7, 7]
    assert together.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert together.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    with pytest.raises(openai.BadRequestError, match="a stream answers one prompt"):
        client.completions.create(prompt=prompts, stream=True, **request)


def test_several_answers_to_one_prompt_are_choices(client: Any) -> None:
    request = {"model": "guide", "messages": conversation(SHORT.question), "n": 3, "seed": 7, "max_tokens": 20}
    whole = client.chat.completions.create(**request)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts, reasons = [""] * 3, [""] * 3
    for chunk in client.chat.completions.create(**request, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    prompt = {"model": "guide", "prompt": "A daemon", "n": 2, "seed": 7, "max_tokens": 5, "echo": True}
    completed = [choice.text for choice in client.completions.create(**prompt).choices]
    texts = ["", ""]
    for chunk in client.completions.create(**prompt, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == completed


def test_embeddings_are_the_same_in_both_encodings(client: Any) -> None:
    packed = client.embeddings.create(model="guide", input=["one", "two"])
    plain = client.embeddings.create(model="guide", input=["one", "two"], encoding_format="float")
    assert len(packed.data) == 2
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)
    short = client.embeddings.create(model="guide", input="one", dimensions=4)
    assert sum(number**2 for number in short.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_models_are_listed_with_their_context(client: Any) -> None:
    (model,) = client.models.list()
    assert model.id == "guide"
    assert model.model_extra["context_length"] > 0
    assert client.models.retrieve("guide").id == "guide"


def test_an_unknown_model_is_answered_by_the_one_there_is_and_not_listed(client: Any) -> None:
    answer = client.chat.completions.create(model="gpt-0", messages=conversation(SHORT.question), temperature=0)
    assert (answer.model, answer.choices[0].message.content) == ("guide", SHORT.answer)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-0")


def test_too_long_a_conversation_has_the_sentence_that_agents_match(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
        client.chat.completions.create(model="guide", messages=conversation("word " * 6000), stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_a_value_out_of_range_names_its_member(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="guide", messages=conversation("Hi"), top_logprobs=99, logprobs=True)
    assert caught.value.param == "top_logprobs"


def test_a_wrong_key_is_refused(door: DoorProcess) -> None:
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_tools_are_called_and_their_results_sent_back(scripted_client: Any, scripted: FakeDaemon) -> None:
    first = {"model": "guide", "messages": conversation("The weather in Vienna?"), "tools": [WEATHER]}
    scripted.answers["infer"] = ANSWER | {"text": "", "tool_calls": [CALL]}
    whole = scripted_client.chat.completions.create(**first, tool_choice="required", parallel_tool_calls=False).choices[
        0
    ]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls[0].function.arguments == '{"place":"Vienna"}'
    forced = scripted.params("infer")
    assert (forced["tool_choice"], forced["parallel_tool_calls"]) == ("required", False)
    scripted.answers["infer"] = ANSWER | {"text": "Sunny."}
    turns = [
        *first["messages"],
        whole.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    second = scripted_client.chat.completions.create(model="guide", messages=turns, tools=[WEATHER])
    assert second.choices[0].message.content == "Sunny."
    sent = scripted.params("infer")["messages"]
    assert sent[1]["tool_calls"][0]["function"]["name"] == "weather"
    assert sent[2] == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}


def test_a_call_is_streamed_when_it_is_whole(scripted_client: Any, scripted: FakeDaemon) -> None:
    call: list[Any] = [{"index": 0, "id": "call_1", "name": "weather"}]
    call += [{"index": 0, "arguments": piece} for piece in ('{"place"', ': "Vie', 'nna"}')]
    pieces = [{"tool_calls": [piece]} for piece in call]
    scripted.pieces = [{"reasoning": "Hm."}, {"text": "Let me see."}, *pieces]
    with scripted_client.chat.completions.stream(
        model="guide", messages=conversation("The weather?"), tools=[WEATHER]
    ) as stream:
        came = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Let me see."
    assert [json.loads(piece) for piece in came if piece] == [{"place": "Vienna"}]
    assert message.tool_calls[0].function.name == "weather"
    assert json.loads(message.tool_calls[0].function.arguments) == {"place": "Vienna"}
    scripted.pieces = ["Hel", "lo"]


def test_an_image_is_sent_on(scripted_client: Any, scripted: FakeDaemon) -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    scripted_client.chat.completions.create(model="guide", messages=[{"role": "user", "content": parts}])
    assert scripted.params("infer")["messages"][0]["content"][1] == {"type": "image", "data": PNG}
    parts[1] = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    with pytest.raises(openai.BadRequestError, match="data URL"):
        scripted_client.chat.completions.create(model="guide", messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize("name", ["wav", "mp3"])
def test_a_sound_is_sent_on(scripted_client: Any, scripted: FakeDaemon, name: str) -> None:
    parts: list[Any] = [
        {"type": "text", "text": "What do you hear?"},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": name}},
    ]
    scripted_client.chat.completions.create(model="guide", messages=[{"role": "user", "content": parts}])
    assert scripted.params("infer")["messages"][0]["content"][1] == {"type": "audio", "data": SOUND}


@pytest.mark.parametrize("sound", [{"data": SOUND, "format": "flac"}, {"data": SOUND}, {"format": "wav"}, SOUND, None])
def test_a_sound_of_another_form_is_refused_by_its_place(scripted_client: Any, sound: Any) -> None:
    parts = [{"type": "input_audio", "input_audio": sound}]
    with pytest.raises(openai.BadRequestError, match=r"wav or mp3|Expected `object") as caught:
        scripted_client.chat.completions.create(model="guide", messages=[{"role": "user", "content": parts}])
    assert caught.value.param == "messages[0].content[0].input_audio"


def test_a_model_without_ears_says_so(client: Any) -> None:
    parts = [{"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}]
    with pytest.raises(openai.BadRequestError, match="audio") as caught:
        client.chat.completions.create(model="guide", messages=[{"role": "user", "content": parts}])
    assert caught.value.code == "unsupported_by_model"


def test_leaving_a_stream_cancels_it_at_the_daemon(scripted_client: Any, scripted: FakeDaemon) -> None:
    scripted.silent_after = 1
    gone = scripted.gone
    try:
        stream = scripted_client.chat.completions.create(model="guide", messages=conversation("Hi"), stream=True)
        assert next(iter(stream)).choices[0].delta.role == "assistant"
        stream.close()
        scripted.wait_until_gone(gone + 1)
    finally:
        scripted.silent_after = None


class Color(enum.StrEnum):
    """A value of a form."""

    RED = "red"


DOT = pydantic.create_model("Dot", color=(Color, ...))
PICTURE = pydantic.create_model("Picture", dot=(DOT, ...))  # a form with references to others


def test_forms_with_references_are_sent_on_and_parsed(scripted_client: Any, scripted: FakeDaemon) -> None:
    scripted.answers["infer"] = ANSWER | {"text": '{"dot":{"color":"red"}}'}
    question = conversation("Which dots?")
    chat = scripted_client.chat.completions.parse(model="guide", messages=question, response_format=PICTURE)
    sent = [scripted.params("infer")]
    response = scripted_client.responses.parse(model="guide", input="Which dots?", text_format=PICTURE)
    sent.append(scripted.params("infer"))
    assert chat.choices[0].message.parsed == response.output_parsed == PICTURE(dot=DOT(color=Color.RED))
    for params in sent:
        assert set(params["json_schema"]["$defs"]) == {"Color", "Dot"}
        assert params["lenient"] is False


def test_members_of_a_chat_are_sent_on_or_dropped(scripted_client: Any, scripted: FakeDaemon) -> None:
    scripted_client.chat.completions.create(
        model="guide",
        messages=conversation("Hi"),
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stop=["a", "b"],
        seed=7,
        max_completion_tokens=5,
        store=True,
        metadata={"a": "b"},
    )
    sent = scripted.params("infer")
    expected = {"tool_choice": {"name": "weather"}, "stop": ["a", "b"], "seed": 7, "max_tokens": 5}
    assert {name: sent[name] for name in expected} == expected
    assert not {"store", "metadata"} & set(sent)


def test_of_many_tools_those_that_are_allowed_are_offered(scripted_client: Any, scripted: FakeDaemon) -> None:
    clock = {"type": "function", "function": {"name": "clock"}}
    request: dict[str, Any] = {"model": "guide", "messages": conversation("Hi"), "tools": [WEATHER, clock]}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [clock]}}
    scripted_client.chat.completions.create(**request, tool_choice=choice)
    sent = [scripted.params("infer")]
    flat: list[Any] = [{"type": "function", **tool["function"]} for tool in request["tools"]]
    named = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}
    scripted_client.responses.create(model="guide", input="Hi", tools=flat, tool_choice=named)
    sent.append(scripted.params("infer"))
    for params in sent:
        assert ([tool["function"]["name"] for tool in params["tools"]], params["tool_choice"]) == (
            ["clock"],
            "required",
        )
    named["tools"] = [{"type": "function", "name": "watch"}]
    with pytest.raises(openai.BadRequestError, match="no tool has the name `watch`"):
        scripted_client.responses.create(model="guide", input="Hi", tools=flat, tool_choice=named)


def test_raw_and_streaming_responses_are_read(scripted_client: Any, scripted: FakeDaemon) -> None:
    request: dict[str, Any] = {"model": "guide", "messages": conversation("Hi")}
    raw = scripted_client.chat.completions.with_raw_response.create(**request)
    assert raw.headers["x-request-id"] == raw.parse()._request_id
    with scripted_client.chat.completions.with_streaming_response.create(**request, stream=True) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"


def test_a_model_may_have_a_slash_and_a_colon_in_its_name(before_names: Any) -> None:
    assert before_names.models.retrieve("org/name:tag").id == "org/name:tag"
    with pytest.raises(openai.NotFoundError, match="no model of this name"):
        before_names.models.retrieve("org/name")


def test_what_is_not_stored_says_so(scripted_client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id: answers are not stored"):
        scripted_client.responses.create(model="guide", input="Hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="answers are not stored"):
        scripted_client.responses.retrieve("resp_1")
