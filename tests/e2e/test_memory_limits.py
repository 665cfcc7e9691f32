"""The memory limits of an engine: ordinary work stays below them, and what exceeds them fails alone."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from car_base.ipc.engine_settings import MARGIN_BYTES
from tests.e2e.sparse_model import generate_sparse
from tests.e2e.support import (
    CANARY,
    KNOWN,
    Daemon,
    Json,
    RawClient,
    configured,
    conversation,
    endless,
    greedy,
    running,
)
from tools.random_model import generate

pytestmark = pytest.mark.slow

WORST_GAP_S = 2.0  # of a stream of another model, or a quarter of the whole on a busy machine
LEAST_MARGIN = 256 << 20
# The bounds of schemas, which are the first line, are as good as absent.
NO_FIRST_LINE = """
from car_engine.grammar import schema
schema._MERGED_PATTERNS_MAX = 1000
"""
TEMPLATE = """{% if messages[0].content == 'large' %}{{ ('a' * 10000000000)[:9] }}
{% elif messages[0].content == 'many' %}{% set held = namespace(all=[]) %}
{% for number in range(90000) %}{% set held.all = held.all + ['a' * 1000000 ~ number] %}{% endfor %}
{% endif %}{{ messages[0].content }}"""


def engine_of(client: RawClient, model: str) -> Json:
    models = client.result("daemon/status")["models"]
    engine: Json = next(each for each in models if each["name"] == model)["engines"][0]
    return engine


def limits_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


@pytest.mark.alone
def test_eight_streams_and_a_long_prompt_fit_an_engine_of_16_threads_with_2_gb_of_weights(folder: Path) -> None:
    generate_sparse(folder / "large.gguf", 2 << 30)
    table = f'[models.large]\npath = "{folder}/large.gguf"\nthreads = 16\nsequences = 8\ncontext_tokens = 8192\n'
    with running(folder, *configured(folder, table)) as daemon, daemon.connect() as client:
        client.result("infer", {"model": "large", "prompt": CANARY, "max_tokens": 1})
        limits = limits_of(engine_of(client, "large")["pid"])
        assert 2 << 30 < int(limits["Max data size"]) < int(limits["Max address space"]) - (2 << 30)
        memory = engine_of(client, "large")["memory"]
        assert memory["private_limit_bytes"] == int(limits["Max data size"])
        assert memory["virtual_limit_bytes"] == int(limits["Max address space"])
        streams = [client.send("infer_stream", endless(model="large", max_tokens=100)) for _ in range(7)]
        streams.append(client.send("infer_stream", {"model": "large", "prompt": "a b " * 1000, "max_tokens": 50}))
        ends = [client.response(each)["result"]["usage"]["completion_tokens"] for each in streams]
        assert ends[:7] == [100] * 7
        client.result("embed", {"model": "large", "input": ["a b c", "d"] * 8})
        engine = engine_of(client, "large")
        assert engine["restarts"] == 0
        # What ordinary work takes was counted as such: all of the margin is left.
        memory = engine["memory"]
        assert memory["private_limit_bytes"] - memory["private_bytes"] >= MARGIN_BYTES
        assert memory["virtual_limit_bytes"] - memory["virtual_bytes"] >= 2 * MARGIN_BYTES


@contextmanager
def hosting(folder: Path) -> Iterator[Daemon]:
    """Run a daemon whose engines have small limits, with a model whose template may take any memory."""
    generate(folder / "odd.gguf", "tiny", "q8_0")
    (folder / "chat.jinja").write_text(TEMPLATE)
    (folder / "sitecustomize.py").write_text(NO_FIRST_LINE)
    table = f"[memory]\nengine_margin_bytes = {LEAST_MARGIN}\n[scheduler]\nsaved_bytes = 0\n"
    table += f'[models.odd]\npath = "{folder}/odd.gguf"\nchat_template = "{folder}/chat.jinja"\n'
    flags = configured(folder, f"{table}context_tokens = 2048\nsequences = 4\n")
    with running(folder, *flags, PYTHONPATH=str(folder)) as daemon:
        yield daemon


def odd(text: str) -> Json:
    return {"model": "odd", "messages": conversation(text), "max_tokens": 2, "ignore_eos": True}


@pytest.mark.parametrize("asked", ["large", "many"])
def test_a_template_that_takes_too_much_memory_is_refused_and_its_engine_lives(folder: Path, asked: str) -> None:
    with hosting(folder) as daemon, daemon.connect() as client, daemon.connect() as other:
        stream = other.send("infer_stream", endless(model="odd", max_tokens=1000))
        other.first_chunk(stream)
        data = client.call("infer", odd(asked))["error"]["data"]
        assert (data["reason"], data["param"]) == ("invalid_params", "messages")
        assert "the chat template takes more than 2 s of a core, or more than 512 MiB" in data["why"]
        assert client.result("infer", odd("small"))["usage"]["completion_tokens"] == 2
        assert other.response(stream)["result"]["usage"]["completion_tokens"] == 1000
        assert engine_of(client, "odd")["restarts"] == 0


def test_a_grammar_that_fills_the_memory_of_its_engine_is_given_up_and_other_requests_do_not_notice(
    folder: Path,
) -> None:
    # With 24 patterns the library takes 4 GiB in a minute. What the template ignores prolongs the job's limit of time.
    patterns = [{"type": "string", "pattern": f"a.{{{number}}}"} for number in range(24)]
    schema = {"allOf": patterns}
    params = odd("small") | {"template_args": {"ignored": "x" * (7 << 20)}, "json_schema": schema}
    with hosting(folder) as daemon, daemon.connect() as client, daemon.connect() as other, ThreadPoolExecutor() as pool:
        client.result("infer", odd("small"))
        other.result("infer", greedy(KNOWN[0]))
        begun, longest = time.monotonic(), 0.0
        filled = pool.submit(client.call, "infer", params)
        while not filled.done():
            longest = max(longest, longest_gap(other, other.send("infer_stream", endless(max_tokens=200))))
        assert longest < max(WORST_GAP_S, (time.monotonic() - begun) / 4)
        assert filled.result()["error"]["data"]["reason"] == "engine_lost"
        assert client.result("infer", odd("small"))["usage"]["completion_tokens"] == 2
    log = daemon.log.read_text()
    assert "engine.stuck" not in log
    assert log.count("model=odd status=-6") == 2


def longest_gap(client: RawClient, stream: Json) -> float:
    """Read a stream to its end, which has to be a result; return the most seconds between two messages."""
    longest, last = 0.0, time.monotonic()
    while True:
        message = client.receive()
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        if message.get("id") == stream:
            assert "result" in message, message
            return longest
