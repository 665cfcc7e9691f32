"""Texts of clients stay theirs: no log, no other user's status and no process's arguments has any of them."""

import base64
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import CANARY, Daemon, Json, RawClient, configured, conversation, endless

pytestmark = pytest.mark.slow

OTHER_USER = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
PICTURE = base64.b64encode(CANARY.encode()).decode()
TOOL: Json = {"type": "function", "function": {"name": CANARY, "description": CANARY, "parameters": {}}}
SCHEMA: Json = {"type": "object", "title": CANARY, "properties": {CANARY: {"const": CANARY}}, "required": [CANARY]}


def image(**part: str) -> list[Json]:
    """Return a conversation with an image, or what says that it is one."""
    return [{"role": "user", "content": [{"type": "text", "text": CANARY}, {"type": "image", **part}]}]


# Requests with the canary wherever text may be; most of them are refused, each for another reason.
REQUESTS: list[tuple[str, Json]] = [
    (
        "infer",
        {
            "prompt": CANARY,
            "max_tokens": 2,
            "session": CANARY,
            "cache_salt": CANARY,
            "supersede": CANARY,
            "stop": [CANARY],
        },
    ),
    ("infer", {"prompt": CANARY, "grammar": f'root ::= "{CANARY}"'}),
    ("infer", {"prompt": CANARY, "grammar": f"root ::= {CANARY}-none"}),
    ("infer", {"prompt": CANARY, "grammar": f'root ::= "{CANARY}'}),
    ("infer_stream", {"prompt": CANARY, "json_schema": SCHEMA, "max_tokens": 20}),
    ("infer", {"prompt": CANARY, "json_schema": {"type": CANARY}}),
    ("infer", {"prompt": CANARY, "json_schema": {"$ref": f"#/{CANARY}"}}),
    ("infer", {"prompt": CANARY, "json_schema": {"type": "string", "pattern": f"({CANARY}"}}),
    ("infer", {"messages": conversation(CANARY), "tools": [TOOL], "tool_choice": "required", "max_tokens": 20}),
    ("infer", {"messages": conversation(CANARY), "tools": [TOOL, TOOL]}),
    ("infer", {"messages": conversation(CANARY), "tool_choice": {"name": CANARY}}),
    ("infer", {"messages": conversation(CANARY), "template_args": {CANARY: CANARY, "messages": CANARY}}),
    ("infer", {"messages": [{"role": CANARY, "content": CANARY, "name": CANARY}], "max_tokens": 2}),
    ("infer", {"messages": [{"role": f"/{CANARY}", "content": CANARY}]}),
    ("infer", {"messages": image(data=PICTURE)}),
    ("infer", {"messages": image(data=f"!{CANARY}")}),
    ("infer", {"messages": image(path=f"/tmp/{CANARY}.png")}),
    ("infer", {"messages": image(data="", url=f"file:///{CANARY}")}),
    ("infer", {"prompt": CANARY, "model": CANARY}),
    ("infer", {"prompt": CANARY, "lora": [{"name": CANARY}]}),
    ("infer", {"prompt": CANARY, CANARY: 1}),
    ("infer", {"prompt": CANARY, "logit_bias": {CANARY: 1}}),
    ("infer", {"prompt": CANARY, "dry": {"multiplier": 1, "sequence_breakers": [CANARY]}, "max_tokens": 2}),
    ("infer", {"prompt": CANARY, "seed": CANARY}),
    ("infer", {"prompt": CANARY * 20_000}),
    ("infer", {"prompt": CANARY, "_meta": {CANARY: CANARY}, "max_tokens": 2}),
    ("infer", endless(timeout_ms=1, max_tokens=20)),
    ("infer", endless(queue_timeout_ms=1, max_tokens=2)),
    ("infer", endless(wait=False, max_tokens=2)),
    ("embed", {"input": [CANARY, ""]}),
    ("embed", {"input": CANARY}),
    ("rerank", {"query": CANARY, "documents": [CANARY]}),
    ("tokenize", {"text": CANARY}),
    ("tokenize", {"text": CANARY, "model": CANARY}),
    ("tokenize", {"text": CANARY * 300_000}),
    ("detokenize", {"tokens": [CANARY]}),
    ("inference/capacity", {"model": CANARY}),
    ("daemon/cancel", {"connection": 1, "id": CANARY}),
    ("daemon/why", {"id": CANARY, CANARY: 1}),
    ("daemon/drain", {"timeout_ms": CANARY}),
    (CANARY, {"prompt": CANARY}),
]
HOSTILE = (
    f"{CANARY}\n".encode(),
    f'{{"jsonrpc":"2.0","id":"{CANARY}","method":"infer","params":{{"prompt":"{CANARY}\n'.encode(),
    f'{{"jsonrpc":"{CANARY}","id":"{CANARY}"}}\n'.encode(),
    f'[{{"jsonrpc":"2.0","id":"{CANARY}","method":"infer_stream","params":{{}}}}]\n'.encode(),
    CANARY.encode() + b"\xff\n",
)


@pytest.fixture
def shared(start: Callable[..., Daemon], folder: Path) -> Daemon:
    """A daemon that logs all it can, and lets another user in."""
    folder.chmod(0o711)
    config = (
        f'[daemon]\nlog_level = "debug"\nallow_uids = [{OTHER_USER}]\n[queue]\nlimit = 4\noverflow = "drop_newest"\n'
    )
    return start(*configured(folder, config), "--capacity", "2").ready()


@contextmanager
def connected_as(user: int, daemon: Daemon) -> Iterator[RawClient]:
    """Have a connection of another user's."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        client = daemon.connect()
    finally:
        os.seteuid(before)
    with client:
        yield client


def traces(process: psutil.Process) -> bytes:
    """Return what the system tells of a process: its arguments, its environment and its threads' names."""
    folder = Path("/proc") / str(process.pid)
    if not folder.exists():
        return " ".join(process.cmdline()).encode()
    files = [folder / "cmdline", folder / "environ", *folder.glob("task/*/comm")]
    return b"".join(file.read_bytes() for file in files)


def send_everything(client: RawClient) -> set[str]:
    """Send all requests, under ids with the canary; return the reasons of those that were refused."""
    reasons = set()
    for number, (method, params) in enumerate(REQUESTS):
        response = client.response(client.send(method, params, f"{CANARY}-{number}"))
        if "error" in response:
            reasons.add(response["error"]["data"]["reason"])
    return reasons


def lose_the_engine(daemon: Daemon, client: RawClient) -> None:
    """Kill the engine twice under a stream and under an answer that then is given up."""
    poison = client.send("infer", endless(session=CANARY), f"{CANARY}-poison")
    for number in range(2):
        stream = client.send("infer_stream", endless(), f"{CANARY}-stream-{number}")
        client.first_chunk(stream)
        with daemon.connect() as other:
            while len(other.result("daemon/status")["sequences"]) < 2:
                pass
        daemon.engine().kill()
        assert client.response(stream)["error"]["data"]["reason"] == "engine_lost"
    assert client.response(poison)["error"]["data"]["quarantined"] is True


def test_no_log_and_no_process_shows_what_clients_say_however_their_requests_end(shared: Daemon) -> None:
    with shared.connect() as client:
        client.result("infer", {"prompt": CANARY, "client": CANARY, "max_tokens": 2})
        reasons = send_everything(client)
        assert reasons >= {"invalid_params", "model_unavailable", "context_exceeded", "method_not_found"}
        assert "internal_error" not in reasons
        for line in HOSTILE:
            client.send_bytes(line)
            client.receive()
        cancelled = client.send("infer_stream", endless(), f"{CANARY}-cancelled")
        client.first_chunk(cancelled)
        client.notify("$/cancelRequest", {"id": cancelled})
        assert client.response(cancelled)["error"]["data"]["reason"] == "cancelled"
        burst = [client.send("infer", endless(max_tokens=5), f"{CANARY}-burst-{number}") for number in range(20)]
        # Each is answered, so that the queue has room for what follows.
        assert any(["error" in client.response(request) for request in burst])  # noqa: C419
        lose_the_engine(shared, client)
        client.result("infer", {"prompt": CANARY, "max_tokens": 2})
        for process in (psutil.Process(shared.process.pid), shared.engine()):
            assert CANARY.encode() not in traces(process)
        with suppress(BrokenPipeError, ConnectionResetError):
            client.send_bytes(CANARY.encode() * 1_000_000)
    assert shared.stop() == 0
    log = shared.log.read_text()
    assert "engine.ended" in log
    assert "Traceback" not in log


@ROOT_ONLY
def test_another_user_is_shown_nothing_of_what_clients_say(shared: Daemon) -> None:
    with shared.connect() as client, connected_as(OTHER_USER, shared) as stranger:
        ids = [f"{CANARY}-{number}" for number in range(4)]
        for request in ids:
            client.send("infer_stream", endless(session=CANARY, supersede=request, client=CANARY), request)
        for request in ids[:2]:
            client.first_chunk(request)
        own = client.result("daemon/status")
        assert {each["id"] for each in own["sequences"]} <= set(ids)
        shown = [stranger.result(method) for method in ("daemon/status", "daemon/metrics", "daemon/why", "models/list")]
        shown.append(stranger.result("inference/capacity"))
        assert shown[0]["others"]["sequences"] == 2
        assert CANARY not in json.dumps(shown)
        connection = own["sequences"][0]["connection"]
        refused = stranger.call("daemon/cancel", {"connection": connection, "id": ids[0]})
        assert CANARY not in json.dumps(refused)
        client.socket.shutdown(socket.SHUT_RDWR)
    assert shared.stop() == 0
