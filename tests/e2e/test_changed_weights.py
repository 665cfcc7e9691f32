"""Files of loaded models that are overwritten or replaced: the model is loaded again, and its answers are right."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import CANARY, PATIENCE_S, Daemon, Json, RawClient, configured, endless, running
from tools.random_model import generate

pytestmark = pytest.mark.slow
RETRIED = {"engine_lost", "model_unavailable"}


@contextmanager
def hosting(folder: Path) -> Iterator[Daemon]:
    """Run a daemon with two models of equal size and different weights."""
    table = ""
    for seed, name in enumerate(("mine", "other")):
        generate(folder / f"{name}.gguf", "tiny", "q8_0", seed=seed)
        table += f'[models.{name}]\npath = "{folder}/{name}.gguf"\ncontext_tokens = 2048\nsequences = 4\n'
    with running(folder, *configured(folder, table)) as daemon:
        yield daemon


def params(model: str, **more: object) -> Json:
    return {"model": model, "prompt": CANARY, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **more}


def answer(client: RawClient, model: str) -> str:
    return str(client.result("infer", params(model))["text"])


def wait_for(daemon: Daemon, event: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while event not in daemon.log.read_text():
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.05)  # nothing but the log announces it


def overwrite(file: Path, data: bytes, *, pause_s: float = 0.0) -> None:
    """Write other bytes into a file, from its start on."""
    with file.open("r+b" if pause_s == 0 else "wb", buffering=0) as content:
        content.write(data[: len(data) // 2])
        time.sleep(pause_s)
        content.write(data[len(data) // 2 :])


def test_a_model_that_is_overwritten_while_requests_run_is_loaded_again_and_answers_right_after(folder: Path) -> None:
    with hosting(folder) as daemon, daemon.connect() as client, daemon.connect() as busy:
        before, right = answer(client, "mine"), answer(client, "other")
        assert before != right
        running_ones = [busy.send("infer", endless(model="mine", max_tokens=800)) for _ in range(4)]
        overwrite(folder / "mine.gguf", (folder / "other.gguf").read_bytes())
        wait_for(daemon, "model.file_changed")
        assert answer(client, "mine") == right
        # Nothing was sent of them: each ran again on the new weights.
        ends = [busy.response(each)["result"]["usage"]["completion_tokens"] for each in running_ones]
        assert ends == [800] * 4
    text = daemon.log.read_text()
    assert text.count("model.file_changed") == 1
    assert "change=overwritten" in text
    assert "defect" not in text


def test_an_answer_right_after_the_overwriting_is_that_of_the_new_weights(folder: Path) -> None:
    with hosting(folder) as daemon, daemon.connect() as client:
        answer(client, "mine")
        right = answer(client, "other")
        overwrite(folder / "mine.gguf", (folder / "other.gguf").read_bytes())
        assert [answer(client, "mine") for _ in range(3)] == [right] * 3


def test_a_model_that_is_cut_and_written_anew_is_loaded_once_it_is_complete(folder: Path) -> None:
    with hosting(folder) as daemon, daemon.connect() as client:
        answer(client, "mine")
        right = answer(client, "other")
        overwrite(folder / "mine.gguf", (folder / "other.gguf").read_bytes(), pause_s=2.5)
        deadline = time.monotonic() + PATIENCE_S
        while (response := client.call("infer", params("mine"))).get("result", {}).get("text") != right:
            assert time.monotonic() < deadline, response
            assert "result" in response or response["error"]["data"]["reason"] in RETRIED


def test_a_model_that_is_replaced_by_renaming_finishes_its_requests_first(folder: Path) -> None:
    with hosting(folder) as daemon, daemon.connect() as client, daemon.connect() as busy:
        answer(client, "mine")
        right = answer(client, "other")
        stream = busy.send("infer_stream", endless(model="mine", max_tokens=1900))
        busy.first_chunk(stream)
        os.replace(folder / "other.gguf", folder / "mine.gguf")
        wait_for(daemon, "change=replaced")
        assert busy.response(stream)["result"]["usage"]["completion_tokens"] == 1900
        assert answer(client, "mine") == right
    assert "engine.ended" not in daemon.log.read_text()
