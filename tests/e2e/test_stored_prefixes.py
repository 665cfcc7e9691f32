"""Prefixes survive an unload, a restart and a killed engine in files; a file that cannot be used costs time alone."""

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.support import PATIENCE_S, Daemon, Json, RawClient, configured
from tests.e2e.test_real_models import same
from tests.e2e.users import ALICE, BOB, connect_as, shared_daemon
from tests.engine.llama.kinds import KINDS
from tests.pace import until
from tools.real_model import GEMMA3, SMOLLM2, RealModel

WORDS = " ".join(f"Note {number}: the lamp was lit on day {number}." for number in range(60))
pytestmark = pytest.mark.slow


@pytest.fixture
def cells(folder: Path) -> Path:
    return folder / "cells"


@pytest.fixture
def restart(folder: Path, cells: Path, start: Callable[..., Daemon]) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon with the folder of cells, after ending the one before."""
    daemons: list[Daemon] = []

    def again(text: str = "", **environment: str) -> Daemon:
        if daemons:
            daemons.pop().stop()
        # The sequences are stated, because llama.cpp reads cells only into a context with as many as their own had.
        text = f'[scheduler]\ncache_dir = "{cells}"\n[models.guide]\nsequences = 4\ncontext_tokens = 4096\n{text}'
        daemons.append(start(*configured(folder, text), **environment).ready())
        return daemons[-1]

    yield again
    for daemon in daemons:
        assert daemon.stop() == 0


def greedy(text: str = WORDS, **more: Any) -> Json:
    return {"prompt": text, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_tokens": True, **more}


def files(cells: Path) -> list[Path]:
    return sorted(cells.glob("guide/cpu/*.cells"))


def engine(client: RawClient) -> Json:
    status: Json = client.result("daemon/status")["models"][0]["engines"][0]
    return status


def cached(answer: Json) -> int:
    return int(answer["usage"]["cached_tokens"])


def test_a_prefix_survives_a_restart_and_the_answer_is_that_of_an_uncached_run(
    restart: Callable[..., Daemon], cells: Path
) -> None:
    with restart().connect() as client:
        alone = client.result("infer", greedy(cache_prompt=False))
        first = client.result("infer", greedy())
    with restart().connect() as client:
        again = client.result("infer", greedy())
        assert cached(again) == again["usage"]["prompt_tokens"] - 1
        assert alone["tokens"] == first["tokens"] == again["tokens"]
        until(lambda: engine(client)["stored_hits"] == 1)
        assert engine(client)["stored_bytes"] == sum(file.stat().st_size for file in files(cells)) > 0
        assert 'card_stored_prefix_hits_total{model="guide"} 1.0' in client.result("daemon/metrics")["text"]


def test_a_prefix_survives_an_unload(restart: Callable[..., Daemon]) -> None:
    with restart().connect() as client:
        client.result("infer", greedy())
        client.result("models/unload", {"model": "guide"})
        assert cached(client.result("infer", greedy())) > 500


def test_a_reproducible_answer_is_the_same_from_stored_cells(restart: Callable[..., Daemon]) -> None:
    params = greedy(reproducible=True, logprobs=3)
    with restart().connect() as client:
        alone = client.result("infer", {**params, "cache_prompt": False})
        client.result("infer", params)
    with restart().connect() as client:
        again = client.result("infer", params)
    assert cached(again) > 500
    assert (again["tokens"], again["logprobs"]) == (alone["tokens"], alone["logprobs"])


def test_files_of_a_model_that_is_gone_are_removed_after_a_week(restart: Callable[..., Daemon], cells: Path) -> None:
    old = cells / "gone" / "cpu" / "1000-a-b.cells"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"cells")
    os.utime(old, (0, 0))
    restart()
    until(lambda: not old.exists())


def test_a_prefix_of_an_idle_engine_survives_its_death(restart: Callable[..., Daemon], cells: Path) -> None:
    daemon = restart()
    with daemon.connect() as client:
        client.result("infer", greedy())
        until(lambda: bool(files(cells)))
        daemon.engine().kill()
        assert cached(client.result("infer", greedy())) > 500
        until(lambda: engine(client)["stored_hits"] == 1)


def test_the_folder_and_its_files_are_private_and_the_log_has_no_text(
    restart: Callable[..., Daemon], cells: Path
) -> None:
    before = os.umask(0)
    try:
        daemon = restart()
    finally:
        os.umask(before)
    with daemon.connect() as client:
        client.result("infer", greedy())
    daemon.stop()
    (file,) = files(cells)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (cells, file.parent, file)]
    assert modes == [0o700, 0o700, 0o600]
    assert file.name.startswith(f"{os.getuid()}-")
    assert "lamp" not in daemon.log.read_text()


def test_a_stored_prefix_serves_its_salt_alone(restart: Callable[..., Daemon]) -> None:
    with restart().connect() as client:
        client.result("infer", greedy())
    with restart().connect() as client:
        others = [client.result("infer", greedy(**other)) for other in ({"cache_salt": "x"}, {"cache_prompt": False})]
        assert [cached(other) for other in others] == [0, 0]
        assert cached(client.result("infer", greedy())) > 500


def test_a_spoiled_file_is_a_miss_and_goes(restart: Callable[..., Daemon], cells: Path) -> None:
    daemon = restart()
    with daemon.connect() as client:
        first = client.result("infer", greedy())
    daemon.stop()
    (file,) = files(cells)
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    spoilt = file.stat().st_ino
    with restart().connect() as client:
        again = client.result("infer", greedy())
        assert cached(again) == 0
        assert again["tokens"] == first["tokens"]
        assert engine(client)["stored_hits"] == 0
        until(lambda: all(each.stat().st_ino != spoilt for each in files(cells)))


def test_another_context_is_another_model_for_cells(restart: Callable[..., Daemon], cells: Path) -> None:
    daemon = restart()
    with daemon.connect() as client:
        client.result("infer", greedy())
    daemon.stop()
    assert files(cells)
    with restart('kv_type = "q8_0"\n').connect() as client:
        assert not files(cells)
        assert cached(client.result("infer", greedy())) == 0


def test_a_folder_that_cannot_be_used_is_a_warning(restart: Callable[..., Daemon], cells: Path) -> None:
    cells.write_text("a file in place of the folder")
    daemon = restart()
    with daemon.connect() as client:
        client.result("infer", greedy())
    daemon.stop()
    assert "cells.no_folder" in daemon.log.read_text()


def test_a_full_disk_is_a_warning(folder: Path, cells: Path, restart: Callable[..., Daemon]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    cells.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", cells], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        daemon = restart()
        with daemon.connect() as client:
            first = client.result("infer", greedy())
            until(lambda: "cells.not_stored" in daemon.log.read_text())
            assert client.result("infer", greedy())["tokens"] == first["tokens"]
        assert daemon.stop() == 0
        assert "No space left on device" in daemon.log.read_text()
        assert not files(cells)
    finally:
        subprocess.run(["umount", "--lazy", cells], check=True)


def test_a_stored_prefix_is_its_user_s_alone(folder: Path, cells: Path) -> None:
    config = f'[scheduler]\ncache_dir = "{cells}"\n[models.guide]\nsequences = 4\ncontext_tokens = 4096\n'
    with shared_daemon(folder, config) as daemon, connect_as(ALICE, daemon.path) as alice:
        alice.result("infer", greedy())
    assert [file.name.split("-")[0] for file in files(cells)] == [str(ALICE)]
    with (
        shared_daemon(folder, config) as daemon,
        connect_as(ALICE, daemon.path) as alice,
        connect_as(BOB, daemon.path) as bob,
    ):
        assert cached(bob.result("infer", greedy())) == 0
        assert cached(alice.result("infer", greedy())) > 500


def test_replicas_share_what_was_stored(restart: Callable[..., Daemon]) -> None:
    with restart("replicas = 2\n").connect() as client:
        client.result("infer", greedy())
    with restart("replicas = 2\n").connect() as client:
        requests = [client.send("infer", greedy(f"{WORDS} Question {number}?")) for number in range(4)]
        assert all(cached(client.response(request)["result"]) > 500 for request in requests)


def real(model: RealModel, cells: Path) -> str:
    """Return the configuration of a real model."""
    table = f'[models.real]\npath = "{model.path}"\nsequences = 2\ncontext_tokens = 4096\n'
    return f'default_model = "real"\n[scheduler]\ncache_dir = "{cells}"\n{table}'


@pytest.fixture(params=KINDS)
def generated(request: pytest.FixtureRequest, folder: Path) -> RealModel:
    """A generated model of each kind of memory."""
    KINDS[request.param](path := folder / "generated.gguf")
    return SMOLLM2._replace(file=str(path))


def test_a_model_of_any_memory_reads_nothing_twice_after_a_restart(
    generated: RealModel, served: Callable[[RealModel], Any]
) -> None:
    text = [20 + place * 7 % 300 for place in range(600)]
    params = {name: value for name, value in greedy().items() if name != "prompt"}
    branches = [[*text[:400], *[other] * 50] for other in (30, 31, 32)]

    def computed(client: RawClient, tokens: list[int]) -> int:
        usage = client.result("infer", {**params, "tokens": tokens})["usage"]
        return int(usage["prompt_tokens"] - usage["cached_tokens"])

    with served(generated) as client:
        answer = client.result("infer", {**params, "tokens": text})["tokens"]
        for branch in branches[:2]:
            computed(client, branch)
    with served(generated) as client:
        assert computed(client, [*text, *answer, 40, 41, 42]) <= 4
        assert computed(client, branches[2]) <= 50
        assert computed(client, text) <= 8


def test_a_daemon_that_is_killed_between_two_turns_reads_none_of_them_again(
    folder: Path, cells: Path, start: Callable[..., Daemon]
) -> None:
    KINDS["convolution"](path := folder / "generated.gguf")
    flags = configured(folder, real(SMOLLM2._replace(file=str(path)), cells))
    params = {**greedy(), "max_tokens": 4}
    del params["prompt"]

    def stored() -> set[Path]:
        return set(cells.glob("real/cpu/*.cells"))

    def answered(tokens: list[int]) -> Json:
        """Return the answer of a daemon that is killed once its cells are in a new file."""
        before, daemon = stored(), start(*flags).ready()
        with daemon.connect() as client:
            answer: Json = client.result("infer", {**params, "tokens": tokens})
        until(lambda: bool(stored() - before))
        daemon.kill()
        return answer

    tokens = [20 + place * 7 % 300 for place in range(60)]
    tokens += answered(tokens)["tokens"]
    for turn in range(2):
        tokens += [40 + turn] * 20
        answer = answered(tokens)
        assert answer["usage"]["prompt_tokens"] - cached(answer) <= 21, "what is new, and the last token of the answer"
        tokens += answer["tokens"]


class Timed(NamedTuple):
    """An answer and its seconds to the first token, and the tokens of its prompt that were and were not cached."""

    first_s: float
    answer: Json
    cached: int
    computed: int


def timed(client: RawClient, params: Json) -> Timed:
    """Stream an answer."""
    started = time.monotonic()
    chunks = [client.first_chunk(client.send("infer_stream", params))]
    first_s = time.monotonic() - started
    while "result" not in (message := client.receive()):
        chunks.append(message["params"])
    usage = message["result"]["usage"]
    parts = {name: [each for chunk in chunks for each in chunk[name]] for name in ("tokens", "logprobs")}
    return Timed(
        first_s, {**parts, "text": ""}, usage["cached_tokens"], usage["prompt_tokens"] - usage["cached_tokens"]
    )


@pytest.fixture
def served(folder: Path, cells: Path, start: Callable[..., Daemon]) -> Callable[[RealModel], Any]:
    """Starts a daemon with a real model and yields a client, more patient than others because such a model is slow."""

    @contextmanager
    def connected(model: RealModel) -> Iterator[RawClient]:
        if not model.path.exists():
            pytest.skip(f"{model.file} is missing: python -m tools.real_model {model.name}")
        daemon = start(*configured(folder, real(model, cells))).ready()
        with daemon.connect() as client:
            client.socket.settimeout(4 * PATIENCE_S)
            yield client
        assert daemon.stop() == 0

    return connected


@pytest.mark.alone
def test_2000_tokens_after_a_restart_cost_a_tenth_of_cold_at_most(served: Callable[[RealModel], Any]) -> None:
    params = {name: value for name, value in greedy(logprobs=5).items() if name != "prompt"}
    params["tokens"] = [300 + place * 7 % 40_000 for place in range(2000)]
    with served(SMOLLM2) as client:
        cold = timed(client, params)
    assert (cold.cached, cold.computed) == (0, 2000)
    warm_s = []
    for _ in range(3):
        with served(SMOLLM2) as client:
            warm = timed(client, params)
        assert warm.computed <= 200
        same(cold.answer, warm.answer)
        warm_s.append(warm.first_s)
    assert min(warm_s) <= 0.1 * cold.first_s


def test_a_real_model_with_windows_goes_on_from_the_end_alone(served: Callable[[RealModel], Any]) -> None:
    text = f"{WORDS} Which lamp was lit first?"
    with served(GEMMA3) as client:
        said = client.result("infer", greedy(text))
    more = f"{text}{said['text']} And which was the last?"
    with served(GEMMA3) as client:
        again = client.result("infer", greedy(more, logprobs=5))
        same(client.result("infer", greedy(more, logprobs=5, cache_prompt=False)), again)
        assert cached(again) > 500
    with served(GEMMA3) as client:
        assert cached(client.result("infer", greedy(WORDS[:1500]))) == 0
