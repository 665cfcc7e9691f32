"""llama-server's own endpoints, as programs use them that were made for it."""

from collections.abc import Callable
from typing import Any

import pytest

from car_http.dialects import llama_completion, openai_completions
from car_http.dialects.common import Caller
from car_http.dialects.llama_completion import LlamaCompletionRequest
from car_http.guard import RequestHead
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, FILE, details, model
from tests.door.support import OfflineDoor
from tests.e2e.support import conversation

HI = conversation("Hi")


async def test_sillytavern_counts_the_tokens_of_a_text(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.post("/tokenize", {"content": "<s>Hi", "model": "local-model"})
    assert (answer.status, answer.json) == (200, {"tokens": [1, 2, 3]})
    sent = {"text": "<s>Hi", "model": "guide", "add_special": False, "parse_special": True}
    assert fake.params("tokenize") == sent
    refused = await offline.post("/tokenize", {"content": "Hi", "with_pieces": True})
    assert (refused.status, refused.json["error"]["param"]) == (400, "with_pieces")


async def test_an_evaluation_script_writes_tokens_out(offline: OfflineDoor, fake: FakeDaemon) -> None:
    assert (await offline.post("/detokenize", {"tokens": [1, 2]})).json == {"content": "abc"}
    assert fake.params("detokenize") == {"tokens": [1, 2]}


async def test_tabby_reads_the_prompt_of_a_conversation(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.post("/apply-template", {"messages": HI, "temperature": 0})
    assert (answer.status, answer.json) == (200, {"prompt": "abc"})
    assert fake.params("tokenize") == {"messages": HI}
    assert fake.params("detokenize") == {"tokens": [1, 2, 3], "special": True}
    fake.answers["tokenize"] = {"tokens": [1, -1], "count": 2}
    assert (await offline.post("/apply-template", {"messages": HI})).json["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/input_tokens", {"messages": HI}),
        ("/chat/completions/input_tokens", {"messages": HI, "stream": True, "max_tokens": 9}),
        ("/v1/responses/input_tokens", {"input": "Hi", "max_output_tokens": 9}),
    ],
)
async def test_openais_client_counts_the_tokens_of_a_request(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any]
) -> None:
    answer = await offline.post(path, body | {"model": "gpt-4o"})
    assert (answer.status, answer.json["input_tokens"]) == (200, 3)
    assert fake.params("tokenize") == {"messages": HI, "model": "guide", "count_only": True}


async def test_llama_swap_checks_the_health_below_v1_without_a_key(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.request("GET", "/v1/health", b"", {"host": "localhost"}, unix=False)
    assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_a_script_lists_the_adapters(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["models/list"] = {"models": [model() | {"adapters": ["style"]}]}
    assert (await offline.get("/lora-adapters")).json == [{"id": 0, "path": "style", "scale": 0.0}]


PROMPT: dict[str, Any] = {"prompt": "<|im_start|>user\nHi", "n_predict": 16}
LOGPROB = {"token": 5, "text": "He", "logprob": -0.5, "top": [{"token": 5, "text": "He", "logprob": -0.5}]}


async def test_sillytavern_completes_a_prompt_with_a_template_written_out(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    fake.answers["infer"] = ANSWER | {"text": "Hello", "stop": "\n"}
    more = {"stop": ["\n"], "top_k": 40, "samplers": ["top_k"], "cache_prompt": True, "seed": -1, "api_server": "x"}
    answer = await offline.post("/completion", PROMPT | more)
    assert answer.status == 200, answer.body
    shown = answer.json
    assert (shown["content"], shown["stop"], shown["model"]) == ("Hello", True, "guide")
    assert (shown["stop_type"], shown["stopping_word"], shown["tokens"]) == ("word", "\n", [])
    assert (shown["tokens_evaluated"], shown["tokens_predicted"], shown["tokens_cached"]) == (3, 2, 0)
    assert shown["generation_settings"] == {"n_predict": 16, "top_k": 40, "stop": ["\n"], "seed": 7}
    assert shown["prompt"] == PROMPT["prompt"]
    assert shown["timings"]["prompt_n"] == 3
    assert shown["timings"]["predicted_per_second"] == pytest.approx(2 / 0.003)
    sent = {"prompt": PROMPT["prompt"], "max_tokens": 16, "stop": ["\n"], "top_k": 40, "cache_prompt": True}
    assert fake.params("infer") == sent | {"parse_special": True}


async def test_a_completion_comes_in_pieces_until_its_last_object(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.progress = [{"phase": "prefill", "done": 3, "total": 9, "cached": 1}]
    fake.pieces = [{"text": "Hel", "tokens": [5, 6], "logprobs": [LOGPROB]}, {"text": "lo", "tokens": [7]}]
    asked = {"stream": True, "return_tokens": True, "return_progress": True, "n_probs": 1}
    events = (await offline.post("/completion", PROMPT | asked)).events
    assert events[0]["prompt_progress"] == {"total": 9, "cache": 1, "processed": 3, "time_ms": 0}
    assert [(each["content"], each["tokens"]) for each in events[1:]] == [("Hel", [5, 6]), ("lo", [7]), ("", [])]
    assert [each["stop"] for each in events] == [False, False, False, True]
    (chosen,) = events[1]["completion_probabilities"]
    top = {"id": 5, "token": "He", "bytes": [72, 101], "logprob": -0.5}
    assert chosen == top | {"top_logprobs": [top]}
    assert (fake.params("infer_stream")["logprobs"], events[-1]["stop_type"]) == (1, "eos")


async def test_an_evaluation_script_sends_tokens_biases_and_the_members_that_it_reads(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    fake.answers["infer"] = ANSWER | {"text": "Hello", "tokens": [5, 6], "logprobs": [LOGPROB]}
    fields = ["content", "tokens", "generation_settings/n_predict", "timings/prompt_n", "nowhere/at"]
    body = {
        "prompt": [1, 2, 3],
        "n_predict": -1,
        "return_tokens": True,
        "logit_bias": [[5, 2.5], [9, False]],
        "response_fields": fields,
    }
    answer = await offline.post("/completion", body)
    assert answer.json == {"content": "Hello", "tokens": [5, 6], "n_predict": -1, "prompt_n": 3}
    assert fake.params("infer") == {"tokens": [1, 2, 3], "return_tokens": True, "logit_bias": {"5": 2.5, "9": -100.0}}


async def test_several_prompts_are_answered_by_a_list(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = lambda params: ANSWER | {"text": str(params.get("tokens") or params["prompt"])}
    answer = await offline.post("/completion", {"prompt": ["a", [1, 2]], "n_predict": 4})
    assert [(each["index"], each["content"]) for each in answer.json] == [(0, "a"), (1, "[1, 2]")]
    (alone,) = [(await offline.post("/completion", {"prompt": ["a"], "n_predict": 0})).json]
    assert (alone["content"], fake.params("infer")["max_tokens"]) == ("a", 1)


@pytest.mark.parametrize(
    ("read", "form"),
    [(openai_completions.read, openai_completions.CompletionRequest), (llama_completion.read, LlamaCompletionRequest)],
)
def test_several_prompts_share_their_schema_because_it_may_be_as_long_as_a_body(
    read: Callable[[Any, Caller], Any], form: type[Any]
) -> None:
    request = form(prompt=["a", "b"], json_schema={"description": "x" * 1000})
    first, second = read(request, Caller(RequestHead("POST", "/completion", {}, unix=True))).params
    assert len(first["json_schema"]) > 1000
    assert first["json_schema"] is second["json_schema"]


async def test_of_several_objects_the_first_has_the_grammar(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.post("/completion", {"prompt": ["a", "b"], "grammar": 'root ::= "a"'})
    assert [each["generation_settings"].get("grammar") for each in answer.json] == ['root ::= "a"', None]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": [1, "text", 2]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": []}}, "prompt"),
        ({"prompt": ["a", "b"], "stream": True}, "stream"),
        (PROMPT | {"logit_bias": [["Hi", 1.0]]}, "logit_bias[0]"),
        (PROMPT | {"logit_bias": [[1, True]]}, "logit_bias[0]"),
        (PROMPT | {"logit_bias": [[1, 2.0], [-1, 1.0]]}, "logit_bias[1]"),
        (PROMPT | {"post_sampling_probs": True}, "post_sampling_probs"),
        (PROMPT | {"image_data": [{"data": "", "id": 1}]}, "image_data"),
    ],
)
async def test_what_a_completion_cannot_keep_is_refused_by_its_name(
    offline: OfflineDoor, body: dict[str, Any], param: str
) -> None:
    answer = await offline.post("/completion", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param), answer.body


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"prompt": "Hi"}, "content"),
        ({"prompt": "Hi", "model": "guide", "n_predict": 8}, "content"),
        ({"prompt": "Hi", "model": "guide", "max_tokens": 8}, "choices"),
    ],
)
async def test_twinny_and_clients_of_openai_without_v1_get_each_its_own_form(
    offline: OfflineDoor, body: dict[str, Any], form: str
) -> None:
    shown = (await offline.post("/completions", body)).json
    assert form in shown
    assert ("content" in shown) != ("choices" in shown)


async def test_continue_embeds_texts(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = await offline.post("/embedding", {"content": ["a", "b"], "embd_normalize": -1})
    assert answer.json == [{"index": 0, "embedding": [[0.6, 0.8]]}, {"index": 1, "embedding": [[1.0, 0.0]]}]
    assert fake.params("embed") == {"input": ["a", "b"], "normalize": False}
    for body, param in [
        ({}, "input"),
        ({"content": [1]}, "content"),
        ({"input": "a", "embd_normalize": 1}, "embd_normalize"),
    ]:
        assert (await offline.post("/embedding", body)).json["error"]["param"] == param


async def test_a_monitor_reads_the_slots(offline: OfflineDoor, fake: FakeDaemon) -> None:
    slots = (await offline.get("/slots")).json
    assert [(each["id"], each["is_processing"]) for each in slots] == [(0, True), (1, False), (2, False), (3, False)]
    assert {each["n_ctx"] for each in slots} == {2048}
    fake.capacity_members = {"available": 0}
    assert (await offline.get("/slots")).status == 200
    full = await offline.get("/slots?fail_on_no_slot=1")
    assert (full.status, full.json["error"]["code"]) == (503, "no_slot")


async def test_sillytavern_derives_the_template_from_the_properties(offline: OfflineDoor, fake: FakeDaemon) -> None:
    shown = details()
    shown["model"] |= {"can": ["chat", "tools", "images"], "defaults": {"temperature": 0.5}}
    fake.answers["models/show"] = shown
    props = (await offline.get("/props?model=guide")).json
    assert props["chat_template"] == FILE["chat_template"]
    assert props["default_generation_settings"] == {"n_ctx": 2048, "params": {"temperature": 0.5, "n_predict": -1}}
    assert (props["modalities"]["vision"], props["chat_template_caps"]["supports_tools"]) == (True, True)
    assert (await offline.get("/props?model=other")).status == 404


async def test_clients_of_lm_studio_list_the_models(offline: OfflineDoor, fake: FakeDaemon) -> None:
    vectors = model(name="vectors", can=("embed",)) | {"state": "unloaded"}
    fake.answers["models/list"] = {"models": [model(can=("generate", "chat", "tools")), vectors]}
    listed = (await offline.get("/api/v0/models")).json["data"]
    assert [(each["id"], each["type"], each["state"]) for each in listed] == [
        ("guide", "llm", "loaded"),
        ("vectors", "embeddings", "not-loaded"),
    ]
    assert (listed[0]["arch"], listed[0]["quantization"], listed[0]["capabilities"]) == (
        "llama",
        "Q4_K_M",
        ["tool_use"],
    )
    assert (listed[0]["max_context_length"], listed[0]["loaded_context_length"]) == (131072, 2048)
    assert (await offline.get("/api/v0/models/guide")).json == listed[0]
    assert (await offline.get("/api/v0/models/other")).json["error"]["code"] == "model_not_found"
    assert len([call for call in fake.calls if call.method == "models/show"]) == 2


SAMPLERS = {
    "xtc_probability": 0.5,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["#"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
}


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/infill"])
async def test_sillytavern_sets_the_samplers_one_by_one(offline: OfflineDoor, fake: FakeDaemon, path: str) -> None:
    body = {"prompt": "Hi", "messages": HI, "input_prefix": "a", "input_suffix": "b"}
    await offline.post(path, body | SAMPLERS)
    sent = fake.params("infer")
    assert sent["xtc"] == {"probability": 0.5, "threshold": 0.1}
    breakers = {"penalty_last_n": 64, "sequence_breakers": ["#"]}
    assert sent["dry"] == {"multiplier": 0.8, "base": 1.5, "allowed_length": 3, **breakers}
    assert sent["mirostat"] == {"version": 2, "tau": 4.0, "eta": 0.2}


async def test_samplers_that_are_off_need_no_other_member(offline: OfflineDoor, fake: FakeDaemon) -> None:
    off = {"xtc_probability": 0, "dry_multiplier": 0, "mirostat": 0, "dynatemp_range": 0, "lora": []}
    await offline.post("/completion", SAMPLERS | off | {"prompt": "Hi"})
    sent = fake.params("infer")
    assert {"xtc", "dry", "mirostat", "lora"}.isdisjoint(sent)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("xtc_threshold", 2),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -5),
        ("dry_penalty_last_n", -7),
        ("dry_sequence_breakers", [""]),
        ("mirostat", 3),
        ("mirostat_tau", -3),
        ("mirostat_eta", 2),
    ],
)
async def test_a_sampler_out_of_its_range_is_refused_by_the_name_that_was_sent(
    offline: OfflineDoor, member: str, value: Any
) -> None:
    place = f"{member}[0]" if isinstance(value, list) else member
    for path in ("/completion", "/v1/chat/completions"):
        answer = await offline.post(path, {"prompt": "Hi", "messages": HI} | SAMPLERS | {member: value})
        assert (answer.status, answer.json["error"]["param"]) == (400, place)
        assert answer.json["error"]["message"].startswith(f"{place}: ")
    if member.startswith("mirostat"):
        body = {"model": "guide", "messages": HI, "options": SAMPLERS | {member: value}}
        answer = await offline.post("/api/chat", body)
        assert (answer.status, f"options.{member}: " in answer.json["error"]) == (400, True)


@pytest.mark.parametrize(("member", "value"), [("dynatemp_range", 0.5), ("lora", [{"id": 0, "scale": 1.0}])])
@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/completions", "/infill"])
async def test_what_would_change_the_answer_and_is_not_there_is_refused_by_its_name(
    offline: OfflineDoor, path: str, member: str, value: Any
) -> None:
    body = {"prompt": "Hi", "messages": HI, "input_prefix": "a", "input_suffix": "b", member: value}
    answer = await offline.post(path, body)
    assert (answer.status, answer.json["error"]["param"]) == (400, member)
