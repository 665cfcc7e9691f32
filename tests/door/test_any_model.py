"""Names that no model has, as programs send them that were made for one server."""

from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, decided, model
from tests.door.support import OfflineDoor
from tests.e2e.support import conversation

HI = conversation("Hi")
# The names that programs send unless they are configured: of OpenAI's examples, LM Studio's plugins, llama-server's
# clients, LangChain's and TypeSafe's.
NAMES = ["gpt-4o", "local-model", "test", "default", "jev-latest"]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
    "/api/chat": {"messages": HI, "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
}
ONE = model(name="one") | {"default": True}
TWO = [ONE, model(name="other")]
LACKING = ("embed",)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", BODIES)
async def test_a_name_that_no_model_has_is_answered_by_the_one_that_chats_and_the_answer_says_so(
    offline: OfflineDoor, fake: FakeDaemon, path: str, name: str
) -> None:
    fake.answers["models/list"] = {"models": [model(), model(name="vectors", can=LACKING)]}
    answer = await offline.post(path, BODIES[path] | {"model": name})
    assert (answer.status, answer.json["model"]) == (200, "guide"), answer.body
    assert fake.params("infer")["model"] == "guide"


async def test_a_decision_asked_of_an_unknown_name_is_made_by_the_model_that_chats_or_by_none(
    fake: FakeDaemon, folder: Path
) -> None:
    fake.answers |= {"decide": decided, "models/list": {"models": TWO}}
    body = {"model": "gpt-6-luna", "input": "x", "questions": [{"type": "predicate", "instructions": "Is it?"}]}
    for any_model, sent in ((None, "gpt-6-luna"), (True, "one")):
        async with OfflineDoor(fake.path, folder / "http-keys", any_model=any_model) as door:
            await door.post("/v1/decisions", body)
            assert fake.params("decide")["model"] == sent


async def test_each_of_several_prompts_and_every_event_says_which_model_answered(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    several = await offline.post("/v1/completions", {"model": "test", "prompt": ["a", "b"]})
    assert (several.status, fake.params("infer")["model"]) == (200, "guide")
    streamed = await offline.post("/v1/chat/completions", {"model": "gpt-4o", "messages": HI, "stream": True})
    assert {event["model"] for event in streamed.events} == {"guide"}


async def test_a_model_that_chats_stands_in_for_an_unknown_one_if_the_default_model_does_not(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    fake.answers["models/list"] = {"models": [model(can=LACKING), model(name="writer")]}
    answer = await offline.post("/v1/chat/completions", {"model": "gpt-4o", "messages": HI})
    assert (answer.json["model"], fake.params("infer")["model"]) == ("writer", "writer")


@pytest.mark.parametrize("others", [[ONE, model() | {"default": False}], [model(), model(name="one")]])
async def test_the_built_in_model_does_not_count_beside_another_one_that_chats(
    offline: OfflineDoor, fake: FakeDaemon, others: list[dict[str, Any]]
) -> None:
    fake.answers["models/list"] = {"models": others}
    answer = await offline.post("/v1/chat/completions", {"model": "gpt-4o", "messages": HI})
    assert (answer.json["model"], fake.params("infer")["model"]) == ("one", "one")


async def test_of_two_models_that_chat_none_stands_in_unless_it_is_configured(fake: FakeDaemon, folder: Path) -> None:
    fake.answers["models/list"] = {"models": TWO}
    body = {"model": "gpt-4o", "messages": HI}
    for any_model, sent in ((None, "gpt-4o"), (False, "gpt-4o"), (True, "one")):
        async with OfflineDoor(fake.path, folder / "http-keys", any_model=any_model) as door:
            await door.post("/v1/chat/completions", body)
            assert fake.params("infer")["model"] == sent


async def test_a_model_that_is_there_answers_also_just_after_it_came(offline: OfflineDoor, fake: FakeDaemon) -> None:
    body = {"model": "other", "messages": HI}
    assert (await offline.post("/v1/chat/completions", body)).json["model"] == "guide"
    fake.answers["models/list"] = {"models": [model(), model(name="other")]}
    fake.answers["infer"] = ANSWER | {"text": "Hello", "model": "other"}
    assert (await offline.post("/v1/chat/completions", body)).json["model"] == "other"


async def test_vectors_of_an_unknown_model_are_not_made_by_another(offline: OfflineDoor, fake: FakeDaemon) -> None:
    """A program would mix them with vectors that it keeps."""
    await offline.post("/v1/embeddings", {"model": "text-embedding-3-small", "input": "a"})
    assert fake.params("embed")["model"] == "text-embedding-3-small"
