"""Both clients and `carctl` against the real daemon: texts, models, the status again and again."""

import asyncio
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_client import AsyncClient, Client, ModelUnavailable, RequestCancelled
from car_protocol.models import LoadProgress
from tests.e2e.pool import serving
from tests.e2e.support import BIN, CANARY, KNOWN, PATIENCE_S, Daemon, running
from tools.random_models.embedding import generate_embedding

TEXTS = ["one text", "another", "one text"]


@pytest.fixture(scope="module")
def ranking() -> Iterator[Daemon]:
    """A daemon whose model only ranks."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "ranks.gguf"
        generate_embedding(path, pooling="rank")
        with running(Path(name), "--model", str(path)) as daemon:
            daemon.connect().close()
            yield daemon


@pytest.fixture(autouse=True)
def _listening(daemon: Daemon) -> None:
    """The blocking client does not wait for a daemon that has yet to come."""
    daemon.connect().close()


def carctl(daemon: Daemon, *arguments: str, input: str = "") -> str:
    """Return the output of a command that succeeds."""
    done = subprocess.run(
        [BIN / "carctl", "--socket", str(daemon.path), *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == ""
    return done.stdout


def test_the_blocking_client_embeds(daemon: Daemon) -> None:
    with Client(daemon.path) as client:
        vectors = client.embed(TEXTS).embeddings
        raw = client.embed(TEXTS[:1], normalize=False).embeddings[0]
    assert [math.isclose(math.hypot(*vector), 1, abs_tol=1e-5) for vector in vectors] == [True] * 3
    assert not math.isclose(math.hypot(*raw), 1, abs_tol=1e-3)


async def test_the_asyncio_client_embeds(daemon: Daemon) -> None:
    async with AsyncClient(daemon.path) as client:
        found = await client.embed(TEXTS)
    assert (len(found.embeddings), found.model) == (3, "guide")


def test_the_blocking_client_ranks(ranking: Daemon) -> None:
    with Client(ranking.path) as client:
        results = client.rerank("which one", ["first", "second", "third"], top_n=2).results
    assert len(results) == 2
    assert results[0].score >= results[1].score


async def test_the_asyncio_client_ranks(ranking: Daemon) -> None:
    async with AsyncClient(ranking.path) as client:
        found = await client.rerank("which one", ["first", "second"])
    assert sorted(each.index for each in found.results) == [0, 1]


def test_a_model_that_cannot_rank_says_so(daemon: Daemon) -> None:
    with Client(daemon.path) as client, pytest.raises(ModelUnavailable) as caught:
        client.rerank("q", ["d"])
    assert caught.value.data["lacks"] == "rerank"


def test_models_come_with_what_they_can_do(daemon: Daemon) -> None:
    with Client(daemon.path) as client:
        (guide,) = client.models()
    assert guide.default
    assert "embed" in guide.can


def test_the_status_comes_again_and_again(daemon: Daemon) -> None:
    with Client(daemon.path) as client:
        watch = client.watch_status(0.1)
        uptimes = [next(watch).uptime_s for _ in range(3)]
        watch.close()
        assert client.tokenize("still usable")
    assert uptimes == sorted(set(uptimes))


async def test_the_status_comes_again_and_again_to_asyncio(daemon: Daemon) -> None:
    async with AsyncClient(daemon.path) as client:
        watch = client.watch_status(0.1)
        uptimes = [(await anext(watch)).uptime_s for _ in range(3)]
        await watch.aclose()
    assert uptimes == sorted(set(uptimes))


async def test_a_request_of_another_connection_can_be_cancelled(daemon: Daemon) -> None:
    async with AsyncClient(daemon.path) as other, AsyncClient(daemon.path) as client:
        stream = other.infer_stream(CANARY, ignore_eos=True, max_tokens=4000)
        await anext(stream)
        (running,) = (await client.status()).sequences
        assert running.id is not None
        await client.cancel_request(running.connection, running.id)
        with pytest.raises(RequestCancelled):
            async for _ in stream:
                pass


def test_carctl_answers_with_its_figures(daemon: Daemon) -> None:
    known = KNOWN[0]
    answer = json.loads(carctl(daemon, "infer", "-", "--temperature", "0", "--json", input=known.question))
    assert answer["text"] == known.answer
    assert carctl(daemon, "infer", known.question, "--temperature", "0").removesuffix("\n") == known.answer.rstrip("\n")


def test_carctl_chats(daemon: Daemon) -> None:
    known = KNOWN[0]
    shown = carctl(daemon, "chat", "--temperature", "0", input=f"{known.question}\n/reset\n{known.question}\n")
    assert shown.count(known.answer.strip()) == 2


def test_carctl_embeds_tokenizes_and_lists(daemon: Daemon) -> None:
    assert len([json.loads(line) for line in carctl(daemon, "embed", "-", input="a\nb\n").splitlines()]) == 2
    pieces = [json.loads(line) for line in carctl(daemon, "tokenize", "Hello there", "--pieces").splitlines()]
    assert "".join(text for _, text in pieces).strip() == "Hello there"
    assert json.loads(carctl(daemon, "tokenize", "Hello there")) == [token for token, _ in pieces]
    assert int(carctl(daemon, "tokenize", "--chat", "Hello there", "--count")) > len(pieces)
    assert "guide (default)  ready" in carctl(daemon, "models", "list")


def test_carctl_shows_the_status_within_80_columns(daemon: Daemon) -> None:
    shown = carctl(daemon, "status")
    assert "8 at once (flag)" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_carctl_unloads_a_model_and_loads_it_again(ranking: Daemon) -> None:
    assert carctl(ranking, "models", "unload", "ranks") == "ranks: unloaded\n"
    assert carctl(ranking, "models", "load", "ranks") == "ranks: ready\n"


def test_carctl_measures_the_daemon(daemon: Daemon) -> None:
    chosen = ("--requests", "6", "--prompt-tokens", "100", "--max-tokens", "4-12", "--priority", "throughput", "--json")
    by_clients, more_clients = (
        json.loads(line) for line in carctl(daemon, "bench", "--at-once", "1,3", *chosen).splitlines()
    )
    by_rate = json.loads(carctl(daemon, "bench", "--rate", "50", *chosen))
    assert (by_clients["at_once"], more_clients["at_once"], by_rate["rate"]) == (1, 3, 50)
    for found in (by_clients, more_clients, by_rate):
        assert found["card"]["requests"] == 6
        assert 80 <= found["card"]["prompt_tokens"] <= 120
        assert 0 < found["card"]["ttft_ms"]["p50"] <= found["card"]["ttft_ms"]["max"]


@pytest.mark.slow
async def test_both_clients_load_a_model_and_report_its_progress(folder: Path) -> None:
    with serving(folder, "abc") as daemon:
        heard: list[LoadProgress] = []
        async with AsyncClient(daemon.path) as client:
            assert (await client.load_model("b", heard.append)).state == "ready"
        assert heard
        heard.clear()
        with Client(daemon.path) as blocking:
            loaded = await asyncio.to_thread(blocking.load_model, "c", heard.append)
        assert loaded.state == "ready"
        assert heard
