"""llama-server's own endpoints, as programs use them that were made for it."""

from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model
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
