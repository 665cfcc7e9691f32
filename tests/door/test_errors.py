"""Errors by table: status, code, and when to try again."""

import asyncio
import json
from typing import Any

import pytest

from car_http.problems import ROWS
from car_protocol.errors import REASONS, RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import RANKING, USAGE
from tests.door.support import Answer, OfflineDoor
from tests.e2e.support import conversation

CHAT = "/v1/chat/completions"
HELLO = {"messages": conversation("Hi")}
CASES: list[tuple[str, dict[str, Any], int, str]] = [
    ("overloaded", {"why": "queue full", "retry_after_ms": 1500}, 429, "rate_limit_exceeded"),
    ("quota", {"limit": "tokens_per_day", "value": 9, "used": 9}, 429, "quota_exceeded"),
    ("deadline_exceeded", {}, 504, "deadline_exceeded"),
    ("draining", {}, 503, "draining"),
    ("model_unavailable", {"why": "unknown model"}, 404, "model_not_found"),
    ("model_unavailable", {"lacks": "images"}, 400, "unsupported_by_model"),
    ("model_unavailable", {"why": "no room", "needed_bytes": 2, "free_bytes": 1}, 503, "no_room"),
    ("model_unavailable", {"why": "the file is damaged"}, 503, "model_failed"),
    ("engine_lost", {}, 502, "engine_lost"),
    ("context_exceeded", {"prompt_tokens": 9000, "context_tokens": 4096}, 400, "context_length_exceeded"),
    ("limit", {"limit": "max_frame_bytes", "value": 8}, 413, "request_too_large"),
    ("limit", {"limit": "max_connections", "value": 8}, 503, "too_many_connections"),
    ("limit", {"limit": "max_depth", "value": 64}, 400, "limit"),
    ("not_permitted", {}, 403, "not_permitted"),
    ("invalid_params", {"param": "json_schema", "why": "no"}, 400, "invalid_value"),
    ("cancelled", {}, 409, "cancelled"),
    ("slow_reader", {}, 408, "slow_reader"),
    ("internal_error", {}, 500, "internal_error"),
]


FORM = {"response_format": {"type": "json_object"}}
SCHEMA_FORM = {"type": "json_schema", "schema": {"type": "object"}}


async def refused(door: OfflineDoor, fake: FakeDaemon, error: RpcError, *, stream: bool = False) -> Answer:
    """Return the answer to a chat that the daemon refuses."""
    fake.answers["infer_stream" if stream else "infer"] = error
    return await door.post(CHAT, {**HELLO, **FORM, "model": "guide", "stream": stream})


@pytest.mark.parametrize(("reason", "data", "status", "code"), CASES)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_reason_has_its_status(
    offline: OfflineDoor, fake: FakeDaemon, reason: str, data: dict[str, Any], status: int, code: str, *, stream: bool
) -> None:
    answer = await refused(offline, fake, RpcError(reason, **data), stream=stream)
    assert answer.status == status
    assert answer.json["error"]["code"] == code
    assert answer.json["error"]["message"]


def test_every_reason_of_an_accepted_request_is_in_the_table() -> None:
    of_frames = {"parse_error", "invalid_request", "method_not_found", "internal_error"}
    assert set(ROWS) == set(REASONS) - of_frames
    assert {reason for reason, *_ in CASES} == set(REASONS) - of_frames | {"internal_error"}


async def test_an_overload_says_when_to_try_again(offline: OfflineDoor, fake: FakeDaemon) -> None:
    known = await refused(offline, fake, RpcError("overloaded", why="queue full", retry_after_ms=1500))
    assert (known.headers["retry-after"], known.headers["retry-after-ms"]) == ("2", "1500")
    unknown = await refused(offline, fake, RpcError("overloaded", why="queue full"))
    assert (unknown.headers["retry-after"], unknown.headers["retry-after-ms"]) == ("1", "1000")
    used = await refused(offline, fake, RpcError("quota", limit="tokens_per_day", retry_after_ms=3_600_000))
    assert (used.status, used.headers["retry-after"]) == (429, "3600")
    late = await refused(offline, fake, RpcError("deadline_exceeded"))
    assert late.headers["x-should-retry"] == "false"


async def test_an_invalid_param_is_named_as_the_dialect_does(offline: OfflineDoor, fake: FakeDaemon) -> None:
    error = RpcError("invalid_params", param="json_schema", why="`minimum` of a text", place="/properties/a")
    answer = await refused(offline, fake, error)
    assert answer.json["error"]["param"] == "response_format"
    assert answer.json["error"]["message"] == "response_format: `minimum` of a text at /properties/a"


async def test_a_daemon_that_lacks_a_method_is_of_another_version(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["tokenize"] = RpcError("method_not_found")
    answer = await offline.post("/tokenize", {"content": "a"})
    assert (answer.status, answer.json["error"]["code"]) == (503, "versions_differ")
    assert answer.json["error"]["message"] == (
        "the daemon lacks a method that this door calls: their versions differ; "
        "install one version of card for both and restart both"
    )


@pytest.mark.parametrize(
    "data",
    [
        {"param": "cache_salt", "why": "Object contains unknown field `cache_salt`"},
        {"param": "cache_salt"},  # the oldest daemons give no reason
        {"param": "tenant", "why": "Object contains unknown field `tenant`"},
    ],
)
async def test_a_daemon_that_lacks_a_member_which_the_door_adds_is_of_another_version(
    offline: OfflineDoor, fake: FakeDaemon, data: dict[str, Any]
) -> None:
    answer = await refused(offline, fake, RpcError("invalid_params", **data))
    assert answer.status == 503
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json["error"]["code"] == "versions_differ"
    assert answer.json["error"]["message"] == (
        f"the daemon refuses `{data['param']}`, which this door sends: their versions differ; "
        "install one version of card for both and restart both"
    )


async def test_an_error_after_the_first_chunk_is_an_event(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent_after = 1
    async with offline.posting(CHAT, {**HELLO, "model": "guide", "stream": True}) as answer:
        await asyncio.to_thread(fake.drop)
    assert answer.status == 200
    assert answer.events[-2]["choices"][0]["delta"] == {"content": "Hel"}
    assert answer.events[-1]["error"]["code"] == "daemon_unavailable"


async def test_a_client_that_leaves_cancels_its_request_alone(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent_after = 1
    async with offline.posting(CHAT, {**HELLO, "model": "guide", "stream": True}) as staying:
        async with offline.posting(CHAT, {**HELLO, "model": "guide", "stream": True}) as leaving:
            leaving.left.set()
        await asyncio.to_thread(fake.wait_until_gone, 1)
        assert fake.gone == 1
        assert offline.metrics.disconnects == 1
        staying.left.set()
    assert offline.pool.in_flight == 0


async def test_without_a_daemon_the_answer_says_how_to_start_it(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.stop()
    answer = await offline.post(CHAT, {**HELLO, "model": "guide"})
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert "start the daemon" in answer.json["error"]["message"]
    assert (await offline.get("/health")).status == 503
    fake.start()
    offline.now += 1
    assert (await offline.get("/health")).json == {"status": "ok"}


async def test_a_kept_connection_that_ended_costs_no_request(offline: OfflineDoor, fake: FakeDaemon) -> None:
    assert (await offline.post(CHAT, {**HELLO, "model": "guide"})).status == 200
    fake.first["infer"] = [None]
    assert (await offline.post(CHAT, {**HELLO, "model": "guide"})).status == 200
    assert fake.accepted == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "not a JSON text"),
        (b"\xff", "not a JSON text"),
        (b"[" * 100_000, "got `array`"),
        (b'{"messages":' + b"[" * 100_000, "messages"),
        (b"[]", "object"),
        (b"", "messages"),
        (b'{"messages":[{"role":1}]}', "messages"),
        (b'{"messages":[],"n":"3"}', "n: "),
        (b'{"messages":[],"audio":{"voice":"x"}}', "audio"),
        (b'{"messages":[],"modalities":["audio"]}', "modalities"),
        (b'{"messages":[{"role":"user","content":[{"type":"file"}]}]}', "messages[0].content[0]"),
        (b'{"messages":[],"tools":[{"type":"custom"}]}', "tools[0]"),
        (b'{"messages":[],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"x":1}}', "tool_choice"),
        (b'{"messages":[],"response_format":{"type":"json_schema"}}', "response_format"),
        (b'{"messages":[],"card":{"speed":1}}', "card.speed"),
        (b'{"messages":[],"card":{"priority":"fast"}}', 'write "latency_critical" or "throughput"'),
    ],
)
async def test_a_body_that_cannot_be_served_is_refused_by_its_member(
    offline: OfflineDoor, body: bytes, expected: str
) -> None:
    answer = await offline.post(CHAT, body)
    assert answer.status == 400
    assert expected in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"response_format": {"type": "json_object"}, "json_schema": {"type": "string"}}, "json_schema"),
        (
            "/v1/messages",
            {"max_tokens": 9, "output_format": SCHEMA_FORM, "output_config": {"format": SCHEMA_FORM}},
            "output_format",
        ),
    ],
)
async def test_two_forms_of_one_answer_are_refused(
    offline: OfflineDoor, path: str, more: dict[str, Any], param: str
) -> None:
    answer = await offline.post(path, HELLO | more)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(f"{param}: is a second form beside ")


async def test_a_last_message_that_goes_on_leaves_no_room_for_the_begin_of_another(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    body = {"model": "guide", "messages": [*conversation("Hi"), {"role": "assistant", "content": "Hel"}]}
    both = {"continue_final_message": True, "add_generation_prompt": True}
    answer = await offline.post(CHAT, body | both)
    assert (answer.status, answer.json["error"]["param"]) == (400, "add_generation_prompt")
    assert "continue_final_message" in answer.json["error"]["message"]
    by_template = {"continue_final_message": True, "chat_template_kwargs": {"add_generation_prompt": True}}
    assert (await offline.post(CHAT, body | by_template)).status == 400
    for begins in (False, None):
        assert (await offline.post(CHAT, body | both | {"add_generation_prompt": begins})).status == 200
        assert fake.params("infer")["continue_last"]
    assert (await offline.post(CHAT, {**body, **HELLO, "add_generation_prompt": True})).status == 200
    assert "template_args" not in fake.params("infer")
    assert (await offline.post(CHAT, {**body, **HELLO, "add_generation_prompt": False})).status == 200
    assert fake.params("infer")["template_args"] == {"add_generation_prompt": False}


async def test_a_refused_token_of_a_prompt_is_named_as_it_was_sent(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = RpcError("invalid_params", param="tokens", why="a token is beyond the vocabulary")
    answer = await offline.post("/v1/completions", {"model": "guide", "prompt": [10**9]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("n", [0, 9, 10**8, 15_539_239_859, 2**70])
@pytest.mark.parametrize(("path", "prompt"), [(CHAT, HELLO), ("/v1/completions", {"prompt": "Hi"})])
async def test_a_number_of_answers_out_of_range_takes_no_memory(
    offline: OfflineDoor, path: str, prompt: dict[str, Any], n: int
) -> None:
    answer = await offline.post(path, {**prompt, "model": "guide", "n": n, "stream": True})
    assert (answer.status, answer.json["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/files", "send their texts"),
        ("/batches", "throughput"),
        ("/v1/messages/batches", "throughput"),
        ("/v1/responses/resp_1", "answers are not stored"),
        ("/nothing", "GET /openapi.json"),
    ],
)
async def test_a_missing_endpoint_says_what_to_do_in_its_place(offline: OfflineDoor, path: str, expected: str) -> None:
    answer = await offline.get(path)
    assert answer.status == 404
    assert expected in answer.body.decode()


async def test_a_wrong_method_names_the_right_one(offline: OfflineDoor) -> None:
    answer = await offline.get(CHAT)
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"


async def test_a_refused_keyword_at_the_top_of_a_schema_has_no_place(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await refused(
        offline, fake, RpcError("invalid_params", param="json_schema", why="not supported: x", place="")
    )
    assert answer.json["error"]["message"] == "response_format: not supported: x"


async def test_a_ranking_of_a_document_that_the_request_lacks_is_the_daemons_fault(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    fake.answers["rerank"] = RANKING | {"results": [{"index": 1, "score": 0.5}]}
    for more in ({}, {"return_documents": True}):
        answer = await offline.post("/v1/rerank", {"query": "q", "documents": ["a"], **more})
        assert answer.status == 502
        assert answer.json["error"]["code"] == "protocol_error"
        assert answer.json["error"]["message"] == "the daemon ranked document 1, and the request has 1"


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/rerank", {"query": "q", "documents": ["a"]}, "rerank"),
        ("/v1/embeddings", {"input": "a"}, "embed"),
        ("/api/embed", {"model": "guide", "input": "a"}, "embed"),
        ("/api/embeddings", {"model": "guide", "prompt": "a"}, "embed"),
        ("/v1/messages/count_tokens", HELLO, "tokenize"),
        ("/api/show", {"model": "guide"}, "models/show"),
        ("/v1/messages", {**HELLO, "model": "guide", "max_tokens": 1}, "infer"),
        (CHAT, HELLO, "models/list"),
    ],
)
@pytest.mark.parametrize("result", [{}, [], {"embeddings": [], "models": [], "model": "guide", "usage": USAGE}])
async def test_a_result_that_the_door_cannot_read_is_the_daemons_fault(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any], method: str, result: Any
) -> None:
    fake.answers[method] = result
    answer = await offline.post(path, body)
    assert answer.status == 502
    assert "the daemon" in json.dumps(answer.json["error"])


async def test_a_stream_that_the_door_fails_to_write_ends_with_an_error_event(
    offline: OfflineDoor, fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    fake.silent_after = 1
    async with offline.posting("/v1/completions", {"model": "guide", "prompt": "Hi", "stream": True}) as answer:
        await asyncio.to_thread(fake.go_on, {"text": "secret", "index": 3})  # the request has no such answer
    assert answer.status == 200
    assert answer.events[0]["choices"][0]["text"] == "Hel"
    assert answer.events[-1]["error"]["code"] == "internal_error"
    assert answer.pieces[-1] == b""
    assert "IndexError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_context_that_is_too_short_comes_with_the_settings_for_a_longer_one(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    why = "set sequences = 1 and context_tokens = 8192 for the model"
    error = RpcError("context_exceeded", prompt_tokens=9, context_tokens=8, longest_tokens=8192, why=why)
    message = (await refused(offline, fake, error)).json["error"]["message"]
    assert message.startswith("This model's maximum context length is 8 tokens.")
    assert message.endswith(f"Please reduce the length of the messages. ({why})")


@pytest.mark.parametrize(
    ("most", "prompts", "n", "status"), [(1, 2, 1, 400), (2, 2, 1, 429), (2, 2, 2, 400), (16, 20, 1, 429)]
)
async def test_more_prompts_than_a_person_may_ever_send_at_once_are_no_matter_of_time(
    offline: OfflineDoor, fake: FakeDaemon, most: int, prompts: int, n: int, status: int
) -> None:
    fake.answers["infer"] = RpcError("quota", limit="in_flight", value=most, used=most, retry_after_ms=1000)
    answer = await offline.post("/v1/completions", {"model": "guide", "prompt": ["a"] * prompts, "n": n})
    assert (answer.status, answer.json["error"]["param"]) == (status, "prompt" if status == 400 else None)
