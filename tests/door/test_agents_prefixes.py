"""Conversations in the forms of Claude Code, Codex and opencode: each request finds the one before it in the cache."""

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.door.support import DoorProcess, door_before
from tests.e2e.support import running
from tests.engine.prompt import templates
from tools.random_model import generate

QWEN = (Path(templates.__path__[0]) / "qwen3.jinja").read_text(encoding="utf-8")
TASK = "Read the file and say what it does. " * 8
SYSTEM = "You are an agent that works in a terminal. " * 12
RESULTS = ("def main(): print('one')\n" * 6, "The tests pass.\n" * 6)
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ARGUMENTS = {"path": "src/main.py"}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def door() -> Iterator[DoorProcess]:
    """A door before a model whose template shows tools."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        path = folder / "model.gguf"
        generate(path, "long", "q8_0", template=QWEN)
        with running(folder, "--model", str(path), "--capacity", "2") as daemon:
            daemon.ready()
            with door_before(folder, daemon.path) as door:
                yield door


def post(door: DoorProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {door.key}"}
    request = urllib.request.Request(door.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def claude_code(door: DoorProcess, turns: int, number: int) -> tuple[int, int]:
    """Send a request with so many results of tools; a count in its first block is another one each time."""
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for place in range(turns):
        use = {"type": "tool_use", "id": f"toolu_{place}", "name": "Read", "input": ARGUMENTS}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{place}", "content": RESULTS[place]}
        messages += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]}]
        messages += [{"role": "user", "content": [result]}]
    billing = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
    system = [{"type": "text", "text": billing}, {"type": "text", "text": SYSTEM}]
    tools = [{"name": "Read", "description": "Reads a file", "input_schema": PARAMETERS}]
    body = {"model": "claude-sonnet-5", "max_tokens": 4, "system": system, "messages": messages, "tools": tools}
    usage = post(door, "/v1/messages", body)["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


def codex(door: DoorProcess, turns: int, number: int) -> tuple[int, int]:
    items: list[Any] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]}]
    for place in range(turns):
        arguments = json.dumps(ARGUMENTS)
        items += [{"type": "function_call", "call_id": f"call_{place}", "name": "shell", "arguments": arguments}]
        items += [{"type": "function_call_output", "call_id": f"call_{place}", "output": RESULTS[place]}]
    tools = [{"type": "function", "name": "shell", "description": "Runs", "parameters": PARAMETERS, "strict": False}]
    body = {"model": "model", "instructions": SYSTEM, "input": items, "tools": tools, "max_output_tokens": 4}
    usage = post(door, "/v1/responses", body | {"store": False, "prompt_cache_key": "codex"})["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def opencode(door: DoorProcess, turns: int, number: int) -> tuple[int, int]:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for place in range(turns):
        function = {"name": "read", "arguments": json.dumps(ARGUMENTS)}
        call = {"id": f"call_{place}", "type": "function", "function": function}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": f"call_{place}", "content": RESULTS[place]}]
    tools = [{"type": "function", "function": {"name": "read", "description": "Reads", "parameters": PARAMETERS}}]
    body = {"model": "model", "messages": messages, "tools": tools, "max_tokens": 4}
    usage = post(door, "/v1/chat/completions", body)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("agent", [claude_code, codex, opencode])
def test_the_second_and_the_third_request_find_the_one_before_in_the_cache(door: DoorProcess, agent: Any) -> None:
    first, second, third = (agent(door, turns, number=turns) for turns in range(3))
    # What the template writes behind a conversation to ask for an answer may differ: a few tokens.
    for (before, _), (prompt, cached) in ((first, second), (second, third)):
        assert prompt > before
        assert before - 32 <= cached <= before
