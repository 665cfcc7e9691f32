"""Members that several dialects share: labels, sessions, deadlines, thoughts, card's own."""

from pathlib import Path
from typing import Any

import pytest

from car_client.door.keys import add_key, digest_of, ensure_keys
from car_http.dialects.ollama.requests import Options
from car_http.dialects.openai_chat import Sampled
from car_protocol.sampling import Sampling
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model
from tests.door.support import OfflineDoor
from tests.e2e.support import conversation

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "guide", "messages": conversation("Hi")}


async def sent(door: OfflineDoor, fake: FakeDaemon, more: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Return the params that the daemon got for a chat."""
    answer = await door.post(CHAT, HELLO | more, **headers)
    assert answer.status == 200, answer.body
    params: dict[str, Any] = fake.params("infer_stream" if more.get("stream") else "infer")
    return params


async def test_members_of_card_have_their_names_and_unknown_ones_are_dropped(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    more: dict[str, Any] = {
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "stop": "END",
        "seed": -1,
        "logit_bias": {"7": -100},
        "service_tier": "flex",
        "prompt_cache_key": "chat-1",
        "user": "ann",
        "top_k": 5,
        "min_p": 0.1,
        "cache_prompt": False,
        "chat_template_kwargs": {"a": 1},
        "store": True,
        "metadata": {"a": "b"},
        "modalities": ["text"],
        "top_p": None,
    }
    params = await sent(offline, fake, more)
    assert params == {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": "guide",
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": ["END"],
        "logit_bias": {"7": -100.0},
        "priority": "throughput",
        "session": "chat-1",
        "client": "ann",
        "top_k": 5,
        "min_p": 0.1,
        "cache_prompt": False,
        "template_args": {"a": 1},
    }


async def test_the_first_length_that_was_sent_counts_also_if_it_means_as_much_as_fits(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    assert "max_tokens" not in await sent(offline, fake, {"max_completion_tokens": -1, "max_tokens": 0})
    assert (await sent(offline, fake, {"max_completion_tokens": 5, "max_tokens": 7}))["max_tokens"] == 5
    assert (await sent(offline, fake, {"max_tokens": 7, "n_predict": 9}))["max_tokens"] == 7


SAMPLED = {"top_k": 7, "repeat_last_n": 9, "logit_bias": {"7": -1.0}, "ignore_eos": True}


@pytest.mark.parametrize("name", sorted({*Sampling.__struct_fields__} & {*Sampled.__struct_fields__} - {"mirostat"}))
async def test_a_sampler_option_of_the_dialect_reaches_the_daemon(
    offline: OfflineDoor, fake: FakeDaemon, name: str
) -> None:
    value = SAMPLED.get(name, 0.25)
    assert (await sent(offline, fake, {name: value}))[name] == value


@pytest.mark.parametrize("name", sorted({*Sampling.__struct_fields__} & {*Options.__struct_fields__} - {"mirostat"}))
async def test_a_sampler_option_of_ollama_reaches_the_daemon(offline: OfflineDoor, fake: FakeDaemon, name: str) -> None:
    value = SAMPLED.get(name, 0.25)
    await offline.post("/api/chat", HELLO | {"options": {name: value}, "stream": False})
    assert fake.params("infer")[name] == value


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, (None, None)),
        ({"type": "json_object"}, ({"type": "object"}, True)),
        ({"type": "json_object", "schema": SCHEMA}, (SCHEMA, True)),
        ({"type": "json_schema", "schema": SCHEMA}, (SCHEMA, True)),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}, (SCHEMA, False)),
    ],
)
async def test_a_form_of_the_answer_is_a_schema(
    offline: OfflineDoor, fake: FakeDaemon, form: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    params = await sent(offline, fake, {"response_format": form})
    assert (params.get("json_schema"), params.get("lenient")) == expected


async def test_mirostat_of_ollama_is_one_sampler(offline: OfflineDoor, fake: FakeDaemon) -> None:
    options = {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2}
    await offline.post("/api/chat", HELLO | {"options": options, "stream": False})
    assert fake.params("infer")["mirostat"] == {"version": 1, "tau": 3.0, "eta": 0.2}


async def test_the_time_that_a_client_waits_is_the_deadline(offline: OfflineDoor, fake: FakeDaemon) -> None:
    whole = await sent(offline, fake, {}, x_stainless_read_timeout="600")
    assert whole["timeout_ms"] == 600_000
    stream = await sent(offline, fake, {"stream": True}, x_stainless_read_timeout="1.5")
    assert (stream["queue_timeout_ms"], stream["progress"], "timeout_ms" in stream) == (1500, True, False)
    for nonsense in ("None", "inf", "-1", "nan"):
        assert "timeout_ms" not in await sent(offline, fake, {}, x_stainless_read_timeout=nonsense)


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/embeddings", {"input": ["a", "b"]}, "embed"),
        ("/api/embed", {"input": ["a", "b"], "model": "guide"}, "embed"),
        ("/embedding", {"content": ["a", "b"]}, "embed"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}, "rerank"),
    ],
)
async def test_texts_have_the_label_of_their_program(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any], method: str
) -> None:
    assert (await offline.post(path, body, user_agent="notes/2.0")).status == 200
    assert fake.params(method)["client"] == "notes"
    if path == "/v1/embeddings":
        assert (await offline.post(path, body | {"user": "ada"}, user_agent="notes/2.0")).status == 200
        assert fake.params(method)["client"] == "ada"


async def test_a_label_is_the_user_else_the_program_and_the_tenant_is_the_key(
    offline: OfflineDoor, fake: FakeDaemon, folder: Path
) -> None:
    assert (await sent(offline, fake, {}, user_agent="OpenAI/Python 3.54.0"))["client"] == "OpenAI"
    without_key = await sent(offline, fake, {"user": "ä" * 60})
    assert (without_key["client"], "tenant" in without_key) == ("ä" * 32, False)
    (default,), zed = ensure_keys(folder / "http-keys"), add_key(folder / "http-keys", "zed")
    for key, salted in ((zed, True), (default, False)):
        body = b'{"model":"guide","messages":[{"role":"user","content":"Hi"}],"user":"zed"}'
        headers = {"host": "localhost", "authorization": f"Bearer {key.secret}", "content-type": "application/json"}
        answer = await offline.request("POST", CHAT, body, headers, unix=False)
        assert answer.status == 200
        params = fake.params("infer")
        # The name of another key as a user is a label below the own key, and nothing of the other key.
        assert (params["tenant"], params["client"]) == (key.name, "zed")
        # Prompts of one named key share no caches with those of others.
        assert ("cache_salt" in params) == salted


async def test_a_persons_key_names_the_person_in_place_of_a_tenant(
    offline: OfflineDoor, fake: FakeDaemon, folder: Path
) -> None:
    secret = "k" * 40
    (folder / "card.toml").write_text(f'[people.anna]\nkey = "{digest_of(secret)}"\n')
    headers = {"host": "localhost", "authorization": f"Bearer {secret}", "content-type": "application/json"}
    body = b'{"model":"guide","messages":[{"role":"user","content":"Hi"}]}'
    assert (await offline.request("POST", CHAT, body, headers, unix=False)).status == 200
    params = fake.params("infer")
    assert (params["person"], "tenant" in params, "cache_salt" in params) == ("anna", False, False)
    for path, asked, method in (
        ("/tokenize", b'{"content":"Hi"}', "tokenize"),
        ("/detokenize", b'{"tokens":[1]}', "detokenize"),
        ("/v1/chat/completions/input_tokens", body, "tokenize"),
        ("/v1/messages/count_tokens", body, "tokenize"),
        ("/v1/embeddings", b'{"model":"guide","input":"Hi"}', "embed"),
    ):
        await offline.request("POST", path, asked, headers, unix=False)
        assert fake.params(method)["person"] == "anna", path
    assert (await offline.request("GET", "/metrics", b"", headers, unix=False)).status == 403
    (folder / "card.toml").write_text("")
    assert (await offline.request("POST", CHAT, body, headers, unix=False)).status == 401


async def test_users_of_one_server_share_no_caches(offline: OfflineDoor, fake: FakeDaemon) -> None:
    requests = [
        await sent(offline, fake, {}, x_openwebui_user_id=user, x_openwebui_chat_id="c")
        for user in ("ann", "bob", "ann")
    ]
    salts = [params["cache_salt"] for params in requests]
    assert salts[0] == salts[2] != salts[1]
    assert [params["session"] for params in requests] == ["c"] * 3


async def test_a_session_that_is_too_long_is_sent_as_its_digest(offline: OfflineDoor, fake: FakeDaemon) -> None:
    params = await sent(offline, fake, {"prompt_cache_key": "k" * 129})
    assert (len(params["session"]), "cache_salt" in params) == (64, False)


async def test_a_trace_goes_on(offline: OfflineDoor, fake: FakeDaemon) -> None:
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    assert (await sent(offline, fake, {}, traceparent=trace))["_meta"] == {"traceparent": trace}


async def test_members_of_cards_own_come_by_body_or_header(offline: OfflineDoor, fake: FakeDaemon) -> None:
    by_header = await sent(offline, fake, {}, x_card_wait="false", x_card_timeout_ms="50", x_card_device="cpu")
    assert (by_header["wait"], by_header["timeout_ms"], by_header["device"]) == (False, 50, "cpu")
    by_body = await sent(offline, fake, {"card": {"lora": [{"name": "a"}], "wait": True}}, x_card_wait="false")
    assert (by_body["lora"], by_body["wait"]) == ([{"name": "a", "scale": 1.0}], True)
    assert (await offline.post(CHAT, HELLO, x_card_wait="maybe")).status == 400
    assert (await offline.post(CHAT, HELLO, x_card_timeout_ms="soon")).status == 400


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        (CHAT, {"reasoning_effort": "none"}, "off"),
        (CHAT, {"reasoning_effort": "high"}, "on"),
        (CHAT, {}, None),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "none"}}, "off"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "low"}}, "on"),
        ("/v1/messages", {"max_tokens": 1, "thinking": {"type": "disabled"}}, "off"),
        ("/v1/messages", {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "on"),
        ("/api/chat", {"think": False, "stream": False}, "off"),
        ("/api/chat", {"think": True, "stream": False}, "on"),
        ("/api/chat", {"think": "high", "stream": False}, "on"),
    ],
)
async def test_thoughts_are_requested_of_models_that_have_them(
    offline: OfflineDoor, fake: FakeDaemon, path: str, more: dict[str, Any], expected: str | None
) -> None:
    fake.answers["models/list"] = {"models": [model(can=("chat", "thinking"))]}
    assert (await offline.post(path, HELLO | more)).status == 200
    assert fake.params("infer").get("reasoning") == expected
    if expected == "on":
        # An agent that requests them of every model is answered by one without.
        fake.answers["models/list"] = {"models": [model(can=("chat",))]}
        async with OfflineDoor(fake.path, Path("none")) as other:
            assert (await other.post(path, HELLO | more)).status == 200
        assert "reasoning" not in fake.params("infer")


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        (CHAT, {"thinking_budget_tokens": 7}, 7),
        (CHAT, {"thinking_budget_tokens": -1, "reasoning_effort": "high"}, None),
        (CHAT, {"reasoning_effort": "low"}, 1024),
        (CHAT, {"reasoning_effort": "low", "thinking_budget_tokens": 7}, 7),
        (CHAT, {"reasoning_effort": "none"}, None),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "minimal"}}, 256),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "low"}}, 1024),
        ("/v1/messages", {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 2048}}, 2048),
        ("/v1/messages", {"max_tokens": 1, "output_config": {"effort": "low"}}, 1024),
        ("/api/chat", {"think": "low", "stream": False}, 1024),
        ("/api/chat", {"think": True, "stream": False}, None),
        ("/api/chat", {"think": True, "stream": False, "card": {"reasoning_tokens": 7}}, 7),
    ],
)
async def test_thoughts_are_bounded_by_a_budget_or_by_their_effort(
    offline: OfflineDoor, fake: FakeDaemon, path: str, more: dict[str, Any], expected: int | None
) -> None:
    fake.answers["models/list"] = {"models": [model(can=("chat", "thinking"))]}
    assert (await offline.post(path, HELLO | more)).status == 200
    assert fake.params("infer").get("reasoning_tokens") == expected


async def test_a_count_of_tokens_has_no_budget(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["tokenize"] = {"count": 3}
    body = HELLO | {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert (await offline.post("/v1/messages/count_tokens", body)).status == 200
    assert "reasoning_tokens" not in fake.params("tokenize")


async def test_a_key_of_supersede_counts_on_all_connections_of_the_door(offline: OfflineDoor, fake: FakeDaemon) -> None:
    await offline.post(CHAT, HELLO | {"card": {"supersede": "editor-1"}})
    assert fake.params("infer") | {"supersede": "editor-1", "supersede_scope": "program"} == fake.params("infer")
    await offline.post(CHAT, HELLO, x_card_supersede="editor-2")
    assert fake.params("infer") | {"supersede": "editor-2", "supersede_scope": "program"} == fake.params("infer")
    await offline.post(CHAT, HELLO)
    assert "supersede_scope" not in fake.params("infer")
    assert (await offline.post(CHAT, HELLO | {"card": {"supersede": 7}})).status == 400


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), ("/v1/completions", {"prompt": "Hi"})])
async def test_a_queue_and_a_prompt_are_shown_while_a_stream_waits(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any]
) -> None:
    fake.progress = [
        {"phase": "queued", "position": 3, "eta_ms": 1200},
        {"phase": "queued", "position": 0, "eta_ms": None},
        {"phase": "prefill", "done": 512, "total": 4096, "cached": 256},
    ]
    answer = await offline.post(path, body | {"stream": True, "return_progress": True, "timings_per_token": True})
    assert answer.comments == ["queued position=3 eta_ms=1200", "queued position=0", "prefill 512/4096"]
    shown = [event["prompt_progress"] for event in answer.events if "prompt_progress" in event]
    assert [(each["cache"], each["processed"], each["total"]) for each in shown] == [(256, 512, 4096)]
    assert [event["model"] for event in answer.events] == ["guide"] * len(answer.events)


async def test_a_chat_ends_with_the_times_that_llama_servers_clients_read(offline: OfflineDoor) -> None:
    whole = (await offline.post(CHAT, HELLO)).json
    assert (whole["timings"]["prompt_n"], whole["timings"]["predicted_n"]) == (3, 2)
    last = (await offline.post(CHAT, HELLO | {"stream": True, "timings_per_token": True})).events[-1]
    assert last["timings"] == whole["timings"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO),
        ("/completion", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", HELLO | {"max_tokens": 1}),
        ("/api/chat", HELLO | {"stream": False}),
    ],
)
async def test_an_answer_that_can_be_repeated_is_requested_in_each_dialect(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any]
) -> None:
    for more, headers in [({"card": {"reproducible": True}}, {}), ({}, {"x_card_reproducible": "true"})]:
        answer = await offline.post(path, {"model": "guide", "return_progress": True, **body, **more}, **headers)
        assert (answer.status, fake.params("infer")["reproducible"]) == (200, True)
