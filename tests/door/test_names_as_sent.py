"""Refusals name the member as the request has it, of the several that become one param of the daemon."""

from typing import Any

import pytest

from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import OfflineDoor
from tests.e2e.support import conversation

CHAT, COMPLETIONS, INFILL, RESPONSES = "/v1/chat/completions", "/v1/completions", "/infill", "/v1/responses"
MESSAGES, OLLAMA, GENERATE = "/v1/messages", "/api/chat", "/api/generate"
TURNS = {"model": "guide", "messages": conversation("Hi")}
PROMPT = {"model": "guide", "prompt": "Hi"}
SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "schema": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: TURNS,
    COMPLETIONS: PROMPT,
    INFILL: {"input_prefix": "a", "input_suffix": "b"},
    RESPONSES: {"model": "guide", "input": "Hi"},
    MESSAGES: TURNS | {"max_tokens": 9},
    OLLAMA: TURNS | {"stream": False},
    GENERATE: PROMPT | {"stream": False},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more", "param", "sent"),
    [
        (CHAT, {"max_completion_tokens": 0}, "max_tokens", "max_completion_tokens"),
        (CHAT, {"max_tokens": 0}, "max_tokens", "max_tokens"),
        (CHAT, {"n_predict": 0}, "max_tokens", "n_predict"),
        (CHAT, {"json_schema": SCHEMA}, "json_schema", "json_schema"),
        (CHAT, {"response_format": FORM}, "json_schema", "response_format"),
        (CHAT, {"reasoning_effort": "high"}, "template_args", "reasoning_effort"),
        (CHAT, {"chat_template_kwargs": {"a": 1}}, "template_args", "chat_template_kwargs"),
        (CHAT, {"continue_final_message": True}, "continue_last", "continue_final_message"),
        (CHAT, {"safety_identifier": "ann"}, "client", "safety_identifier"),
        (CHAT, {"logprobs": True, "top_logprobs": 99}, "logprobs", "top_logprobs"),
        (CHAT, {"logprobs": True}, "logprobs", "logprobs"),
        (CHAT, {"card": {"priority": "throughput"}}, "priority", "card.priority"),
        (CHAT, {"service_tier": "flex"}, "priority", "service_tier"),
        (CHAT, {"card": {"device": "gpu9"}}, "device", "card.device"),
        (CHAT, {"temperature": 1}, "temperature", "temperature"),
        (COMPLETIONS, {"logprobs": 99}, "logprobs", "logprobs"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens", "max_tokens"),
        (INFILL, {"n_predict": 1}, "max_tokens", "n_predict"),
        (INFILL, {"max_tokens": 1}, "max_tokens", "max_tokens"),
        (INFILL, {}, "prompt", "input_prefix"),
        (RESPONSES, {"max_output_tokens": 0}, "max_tokens", "max_output_tokens"),
        (RESPONSES, {"reasoning": {"effort": "low"}}, "template_args", "reasoning.effort"),
        (RESPONSES, {"text": {"format": FORM}}, "json_schema", "text.format"),
        (RESPONSES, {}, "messages", "input"),
        (MESSAGES, {"stop_sequences": ["a"]}, "stop", "stop_sequences"),
        (MESSAGES, {"output_format": FORM}, "json_schema", "output_format"),
        (MESSAGES, {"output_config": {"format": FORM}}, "json_schema", "output_config.format"),
        (OLLAMA, {"options": {"num_predict": 7}}, "max_tokens", "options.num_predict"),
        (OLLAMA, {"options": {"top_k": 7}}, "top_k", "options.top_k"),
        (OLLAMA, {"options": {"repeat_last_n": -7}}, "repeat_last_n", "options.repeat_last_n"),
        (OLLAMA, {"format": SCHEMA}, "json_schema", "format"),
        (GENERATE, {}, "messages", "prompt"),
    ],
)
async def test_a_refusal_names_the_member_that_was_sent(
    offline: OfflineDoor,
    fake: FakeDaemon,
    path: str,
    more: dict[str, Any],
    param: str,
    sent: str,
    *,
    stream: bool,
) -> None:
    fake.answers["infer_stream" if stream else "infer"] = RpcError("invalid_params", param=param, why="no")
    answer = await offline.post(path, BODIES[path] | more | {"stream": stream})
    assert answer.status == 400
    error = answer.json["error"]
    assert (error if isinstance(error, str) else error["message"]) == f"{sent}: no"


async def test_a_refusal_names_a_header_that_was_sent(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = RpcError("invalid_params", param="timeout_ms", why="no")
    answer = await offline.post(CHAT, TURNS, x_card_timeout_ms="0")
    assert answer.json["error"]["param"] == "X-Card-Timeout-Ms"
    for given in ({"x_card_timeout_ms": "soon"}, {"x_card_reasoning_tokens": "few"}):
        error = (await offline.post(CHAT, TURNS, **given)).json["error"]
        assert error["param"].lower().replace("-", "_") in given
        assert "give a whole number" in error["message"]


async def test_the_reason_of_a_refusal_names_members_as_they_were_sent(offline: OfflineDoor, fake: FakeDaemon) -> None:
    why = "give grammar or json_schema, not both"
    fake.answers["infer"] = RpcError("invalid_params", param="json_schema", why=why)
    body = TURNS | {"grammar": "root ::= [a-z]", "response_format": FORM}
    answer = await offline.post(CHAT, body)
    assert answer.json["error"]["message"] == "response_format: give grammar or response_format, not both"


@pytest.mark.parametrize(
    ("path", "body", "method", "param", "sent"),
    [
        ("/v1/completions", PROMPT | {"prompt": ["a", "b"], "n_predict": 0}, "infer", "max_tokens", "n_predict"),
        (
            "/v1/messages/count_tokens",
            TURNS | {"output_config": {"effort": "low"}},
            "tokenize",
            "template_args",
            "output_config.effort",
        ),
        ("/api/embeddings", PROMPT, "embed", "input", "prompt"),
        ("/api/embed", {"model": "guide", "input": "a"}, "embed", "input", "input"),
    ],
)
async def test_a_refusal_of_a_call_without_a_writer_names_the_member_that_was_sent(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any], method: str, param: str, sent: str
) -> None:
    fake.answers[method] = RpcError("invalid_params", param=param, why="no")
    error = (await offline.post(path, body)).json["error"]
    assert (error if isinstance(error, str) else error["message"]) == f"{sent}: no"
