"""Long texts, for every way in which llama.cpp cuts text: each is answered or refused, and nobody else feels it."""

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.e2e.support import PATIENCE_S, Daemon, Json, endless, running, slowest_answer
from tools.random_model import generate

pytestmark = pytest.mark.slow

CONTEXT = 8192
# A piece so long that no text of a frame is refused unseen.
LONG_PIECE = "~" * 1000
SIZE = 200_000
LARGE = 8_000_000
# The last one where a model leaves nothing of a text.
REFUSALS = {"context_exceeded", "limit", "invalid_params"}
# One name for each kind of regular expressions.
PRES = (
    *("afmoe", "bloom", "chameleon", "deepseek-llm", "deepseek-v3", "exaone-moe", "falcon", "gemma4", "gpt-4o"),
    *("jais-2", "kimi-k2", "llama-bpe", "qwen2", "smollm", "superbpe", "whitespace", "youtu"),
)


@contextmanager
def serving(pre: str) -> Iterator[Daemon]:
    """Run a daemon on a model that cuts text in this way."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "model.gguf"
        generate(path, "tiny", "f32", pre=pre, extra_tokens={LONG_PIECE: False})
        with running(Path(name), "--model", str(path), "--capacity", "2", "--context-tokens", str(CONTEXT)) as daemon:
            yield daemon.ready()


def texts(size: int) -> dict[str, str]:
    """Return texts of so many bytes, or nearly."""
    # Characters that JSON escapes would have the largest texts need more than a frame.
    characters = range(1, 256) if size < LARGE else [code for code in range(32, 127) if chr(code) not in '"\\']
    noise = "".join(map(chr, random.Random(size).choices(characters, k=size)))
    return {
        "a letter": "a" * size,
        "a capital": "A" * size,
        "spaces": " " * size,
        "lines": "\n" * size,
        "digits": "7" * size,
        "an emoji": "\U0001f600" * (size // 4),
        "words": "word and " * (size // 9),
        "noise": noise.encode()[:size].decode(errors="ignore"),
    }


def assert_taken(daemon: Daemon, sent: dict[str, str]) -> dict[str, Json]:
    """Send each text as a prompt; return the errors. Nobody else may feel it."""
    engine, done, errors = daemon.engine(), Event(), {}
    with daemon.connect() as client, daemon.connect() as other:
        client.socket.settimeout(PATIENCE_S)
        stream = other.send("infer_stream", endless(max_tokens=500))
        other.first_chunk(stream)
        with ThreadPoolExecutor() as pool:
            begun = time.monotonic()
            probing = pool.submit(slowest_answer, daemon, done)
            try:
                for name, text in sent.items():
                    response = client.call("infer", {"prompt": text, "max_tokens": 2})
                    if "error" in response:
                        assert response["error"]["data"]["reason"] in REFUSALS, name
                        errors[name] = response["error"]["data"]
            finally:
                done.set()
            assert probing.result() < max(1, (time.monotonic() - begun) / 4)
        answer = other.response(stream)["result"]
        assert answer["usage"]["completion_tokens"] == 500
    assert daemon.engine().pid == engine.pid
    return errors


def test_two_hundred_kilobytes_of_one_kind_are_cut_and_counted() -> None:
    with serving("tekken") as daemon:
        errors = assert_taken(daemon, texts(SIZE))
        assert set(errors) == set(texts(1))
        assert all(error["prompt_tokens"] > CONTEXT for error in errors.values())


def test_two_hundred_kilobytes_that_fit_the_context_are_answered() -> None:
    with serving("gpt-4o") as daemon, daemon.connect() as client:
        answer = client.result("infer", {"prompt": LONG_PIECE * 200, "max_tokens": 2, "ignore_eos": True})
        assert answer["usage"] == {"prompt_tokens": 201, "cached_tokens": 0, "completion_tokens": 2}


@pytest.mark.parametrize("pre", PRES)
def test_two_hundred_kilobytes_end_no_engine_however_it_cuts_text(pre: str) -> None:
    with serving(pre) as daemon:
        assert_taken(daemon, texts(SIZE))


@pytest.mark.alone
@pytest.mark.parametrize("pre", ["gpt-2", "tekken", "exaone-moe"])
def test_eight_megabytes_end_no_engine(pre: str) -> None:
    with serving(pre) as daemon:
        large = texts(LARGE)
        errors = assert_taken(daemon, {name: large[name] for name in ("a letter", "spaces", "words", "noise")})
        assert errors["a letter"]["limit"] == errors["spaces"]["limit"] == "max_unbroken_characters"
        assert errors["noise"]["prompt_tokens"] > CONTEXT
