"""Gaps between two texts through the socket, and an editor that asks anew with every keystroke."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.carctl.command import carctl
from tests.e2e.support import Daemon, Json, RawClient, running
from tools.random_model import generate

FILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
KEYSTROKE_S = 0.08


@pytest.fixture(scope="module")
def filler() -> Iterator[Daemon]:
    """A model that fills gaps."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "model.gguf"
        generate(path, "tiny", "q8_0", extra_tokens=dict.fromkeys(FILL, True))
        with running(Path(name), "--model", str(path), "--capacity", "4") as daemon:
            yield daemon.ready()


@pytest.fixture
def coder(filler: Daemon) -> Iterator[RawClient]:
    """A client of it."""
    with filler.connect() as client:
        yield client


def gap(**more: object) -> Json:
    return {"prompt": "def area(r):", "suffix": "return result", "temperature": 0, "max_tokens": 20, **more}


def test_the_answer_is_that_to_the_models_own_tokens_for_it(coder: RawClient) -> None:
    def cut(text: str) -> list[int]:
        found: list[int] = coder.result("tokenize", {"text": text, "parse_special": True})["tokens"]
        return found

    answer = coder.result("infer", gap())
    pieces = [[0], cut(FILL[0]), cut("def area(r):"), cut(FILL[1]), cut("return result"), cut(FILL[2])]
    tokens = [token for piece in pieces for token in piece]
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    by_hand = coder.result("infer", {"tokens": tokens, "temperature": 0, "max_tokens": 20})
    chunks, _ = coder.stream(gap())
    assert answer["text"] == by_hand["text"] == "".join(chunk["text"] for chunk in chunks) != ""
    assert answer["text"] != coder.result("infer", gap(suffix="pass"))["text"]


def test_special_tokens_in_a_suffix_are_text(coder: RawClient) -> None:
    plain, parsed = (
        coder.result("infer", gap(suffix=FILL[2], parse_special=parses))["usage"]["prompt_tokens"]
        for parses in (False, True)
    )
    assert plain > parsed


def test_a_model_that_fills_no_gaps_lacks_it(client: RawClient) -> None:
    error = client.call("infer", gap())["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "fill")


def test_carctl_fills_a_gap(filler: Daemon, coder: RawClient) -> None:
    done = carctl("--socket", str(filler.path), "infer", "def area(r):", "--suffix", "return result", *SAME)
    assert done.stdout.decode().removesuffix("\n") == coder.result("infer", gap())["text"]


SAME = ("--temperature", "0", "--max-tokens", "20")


def test_of_an_editors_requests_one_runs_at_a_time_and_the_last_is_answered(coder: RawClient, filler: Daemon) -> None:
    typed = "return r * r"
    stops: Json = {"ignore_eos": True, "max_tokens": 4000, "supersede": "cursor", "temperature": 0}
    ids = []
    with filler.connect() as watcher:
        for length in range(1, len(typed)):
            ids.append(coder.send("infer_stream", gap(prompt=f"def area(r):\n    {typed[:length]}", **stops)))
            time.sleep(KEYSTROKE_S)  # the pace of a person
            # The engine gives the superseded requests up between two steps.
            while watcher.result("inference/capacity")["in_use"] > 2:
                pass
    last = gap(prompt=f"def area(r):\n    {typed}", **{**stops, "max_tokens": 20})
    ids.append(coder.send("infer_stream", last))
    newest, errors, text = 0, [], ""
    while True:
        message = coder.receive()
        if message.get("method") == "infer_stream/chunk":
            place = ids.index(message["params"]["id"])
            assert place >= newest, "a superseded request went on"
            newest = place
            text += message["params"]["text"] if place == len(ids) - 1 else ""
        elif "error" in message:
            errors.append(message["error"]["data"]["superseded"])
        else:
            break
    assert (message["id"], errors) == (ids[-1], [True] * (len(ids) - 1))
    del last["supersede"]
    assert text == coder.result("infer", last)["text"]
