"""Random bodies, heads and paths: every answer is a status with its meaning, and never a defect."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_client.carctl.hub.remote import Hub, PullError
from car_http.endpoints.table import ENDPOINTS
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import EMBEDDINGS, RANKING, decided, model
from tests.door.support import Answer, OfflineDoor

# Each endpoint with a body that is served.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/completion": {"prompt": "Hi"},
    "/embedding": {"content": "Hi"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/responses": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/decisions": {"input": "Hi", "questions": [{"type": "predicate", "instructions": "Is it?"}]},
    "/v1/systemone": {"state": "Hi", "questions": {"a": {"type": "noul", "instructions": "Is it?"}}},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/chat": {"model": "guide", "messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "guide", "prompt": "Hi"},
    "/api/pull": {"model": "guide"},
    "/api/create": {"model": "made", "from": "mine"},
    "/api/copy": {"source": "mine", "destination": "other"},
    "/api/embed": {"model": "guide", "input": "Hi"},
    "/api/embeddings": {"model": "guide", "prompt": "Hi"},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses/input_tokens": {"input": "Hi"},
}
KINDS = {each.path: each.body for each in ENDPOINTS if each.body is not None}
# Words of the dialects make random values go further than the first check.
WORDS = st.sampled_from(
    [
        "type",
        "text",
        "role",
        "user",
        "assistant",
        "tool",
        "content",
        "function",
        "name",
        "arguments",
        "image_url",
        "url",
        "tool_use",
        "tool_result",
        "input",
        "id",
        "source",
        "data",
        "base64",
        "custom",
        "json_schema",
        "schema",
        "format",
        "function_call",
        "function_call_output",
        "call_id",
        "output",
        "message",
        "reasoning",
        "thinking",
        "enabled",
        "{}",
        "data:image/png;base64,AAAA",
        "guide",
        "auto",
        "required",
        "allowed_tools",
        "mode",
        "system",
        "summary",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=5),
    max_leaves=12,
)
MEANT = {503, 504}


class NoHub(Hub):
    """A hub without repositories."""

    def files(self, repo: str, revision: str | None) -> list[str]:
        """Raise PullError."""
        raise PullError(f"there is no repository {repo}")


class Bench(NamedTuple):
    """A loop with a door in it."""

    runner: asyncio.Runner
    door: OfflineDoor

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Return the answer to a POST."""
        given = {"content-type": "application/json"} | headers
        return self.runner.run(self.door.request("POST", path, body, given))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """A door before a fake daemon."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, asyncio.Runner() as runner:
        fake = FakeDaemon(Path(name) / "card.sock")
        fake.answers["models/list"] = {
            "models": [model(can=("chat", "thinking", "tools")), model(name="made", can=("embed",))]
        }
        fake.answers["daemon/reload"] = {}
        (Path(name) / "card.toml").write_text('[models.mine]\npath = "/m/mine.gguf"\n')
        fake.answers["decide"] = decided
        # The fake daemon ranks two documents, however many there are.
        fake.answers["rerank"] = RANKING | {"results": []}
        fake.answers["embed"] = lambda params: EMBEDDINGS | {"embeddings": [[0.6, 0.8] for _ in params["input"]]}
        fake.start()
        door = OfflineDoor(fake.path, Path(name) / "keys", hub=NoHub())
        yield Bench(runner, door)
        door.pool.close()
        fake.stop()


def is_meant(answer: Answer) -> bool:
    """Return whether an answer is a success, a refusal, or an error that says when to come back."""
    return 200 <= answer.status < 500 or answer.status in MEANT


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=25)
@given(data=st.data())
def test_random_members_are_answered_or_refused(bench: Bench, path: str, data: st.DataObject) -> None:
    names = st.sampled_from(KINDS[path].__struct_encode_fields__)
    changed = BODIES[path] | data.draw(st.dictionaries(names, VALUES, max_size=4))
    answer = bench.post(path, json.dumps(changed).encode(), {})
    assert is_meant(answer), (path, changed, answer.body)
    if answer.status >= 400:
        assert answer.json.get("error") or answer.json["detail"], (path, changed)


@settings(max_examples=50)
@given(
    path=st.sampled_from(sorted(BODIES)),
    body=st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode(errors="surrogatepass")),
)
def test_random_bytes_are_refused(bench: Bench, path: str, body: bytes) -> None:
    answer = bench.post(path, body, {})
    assert 400 <= answer.status < 500, (path, body, answer.body)


LATIN = st.text(st.characters(max_codepoint=255), max_size=30)
HEADERS = [
    "user-agent",
    "traceparent",
    "x-stainless-read-timeout",
    "x-openwebui-chat-id",
    "x-card-wait",
    "x-card-lora",
    "x-card-timeout-ms",
    "x-card-session",
    "content-length",
    "accept",
]


@settings(max_examples=50)
@given(
    headers=st.dictionaries(
        st.sampled_from(HEADERS), st.text(st.characters(max_codepoint=255), max_size=30), max_size=4
    )
)
def test_random_headers_are_answered_or_refused(bench: Bench, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1").decode("latin-1") for name, value in headers.items()}
    body = BODIES["/v1/chat/completions"]
    assert is_meant(bench.post("/v1/chat/completions", json.dumps(body).encode(), encoded))


@settings(max_examples=50)
@given(path=st.text(max_size=20), query=st.text(max_size=20))
def test_random_paths_are_not_found(bench: Bench, path: str, query: str) -> None:
    request = bench.door.request("GET", f"/{path}?{query}", b"", {})
    assert is_meant(bench.runner.run(request))


def test_every_endpoint_with_a_body_is_fuzzed() -> None:
    # A form with a file is no JSON: `test_transcriptions.py` has its faults.
    posted = {each.path for each in ENDPOINTS if each.method == "POST" and not each.file}
    of_one_member_or_none = {
        "/card/session",
        "/v1/models/load",
        "/v1/models/unload",
        "/models/load",
        "/models/unload",
        "/api/show",
    }
    with_prefix = {path for path in posted - of_one_member_or_none if f"/v1{path}" not in posted}
    assert with_prefix == set(BODIES)
