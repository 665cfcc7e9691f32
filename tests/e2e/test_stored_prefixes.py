"""Prefixes survive an unload, a restart and a killed engine in files; a file that cannot be used costs time alone."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import PATIENCE_S, Daemon, Json, RawClient, configured

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
        text = f'[scheduler]\ncache_dir = "{cells}"\n[models.guide]\ncontext_tokens = 4096\n{text}'
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


def until(reached: Callable[[], bool]) -> None:
    """Return once it is so: files announce nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


@pytest.mark.parametrize("other", [{"cache_salt": "another"}, {"cache_prompt": False}])
def test_a_stored_prefix_serves_its_salt_alone(restart: Callable[..., Daemon], other: Json) -> None:
    with restart().connect() as client:
        client.result("infer", greedy())
    with restart().connect() as client:
        assert cached(client.result("infer", greedy(**other))) == 0


def damaged(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def of_another(file: Path) -> None:
    file.write_bytes(b"GGUF" * 1000)


@pytest.mark.parametrize("spoil", [damaged, truncated, of_another])
def test_a_spoiled_file_is_a_miss_and_goes(
    restart: Callable[..., Daemon], cells: Path, spoil: Callable[[Path], None]
) -> None:
    daemon = restart()
    with daemon.connect() as client:
        first = client.result("infer", greedy())
    daemon.stop()
    (file,) = files(cells)
    spoil(file)
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
