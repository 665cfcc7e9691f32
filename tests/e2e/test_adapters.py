"""LoRA adapters by request, on a generated model with two of them."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.support import PATIENCE_S, Daemon, Json, RawClient, configured, running
from tools.random_model import generate
from tools.random_models.adapter import generate_adapter

PROMPT = "some words to begin with"


@pytest.fixture(scope="module")
def adapted() -> Iterator[Daemon]:
    """A daemon that serves a model with the adapters `one` and `two`."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "base.gguf", "tiny", "q8_0")
        generate_adapter(folder / "one.gguf", "tiny", seed=1)
        generate_adapter(folder / "two.gguf", "tiny", seed=2)
        config = (
            f'default_model = "base"\n[models.base]\npath = "{folder}/base.gguf"\nsequences = 6\ncontext_tokens = 512\n'
            f'adapters = {{ one = "{folder}/one.gguf", two = "{folder}/two.gguf" }}\n'
        )
        with running(folder, *configured(folder, config)) as daemon:
            yield daemon


@pytest.fixture
def client(adapted: Daemon) -> Iterator[RawClient]:
    """A connection."""
    with adapted.connect() as client:
        yield client


def params(*lora: tuple[str, float], **more: object) -> Json:
    adapters = [{"name": name, "scale": scale} for name, scale in lora]
    return {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "ignore_eos": True, "lora": adapters, **more}


SETS: list[tuple[tuple[str, float], ...]] = [(), (("one", 1.0),), (("two", 1.0),), (("one", 0.5), ("two", -1.0))]


def test_each_set_of_adapters_gives_an_answer_of_its_own(client: RawClient) -> None:
    texts = [client.result("infer", params(*lora))["text"] for lora in SETS]
    assert len(set(texts)) == len(SETS)


def test_a_scale_of_0_is_the_model_itself(client: RawClient) -> None:
    assert client.result("infer", params(("one", 0)))["text"] == client.result("infer", params())["text"]


def test_the_order_of_adapters_means_nothing(client: RawClient) -> None:
    first = client.result("infer", params(("one", 0.5), ("two", -1.0)))
    second = client.result("infer", params(("two", -1.0), ("one", 0.5)))
    assert second["text"] == first["text"]
    assert second["usage"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1


def test_sets_at_once_are_answered_as_each_alone(client: RawClient) -> None:
    alone = [client.result("infer", params(*lora, cache_prompt=False))["text"] for lora in SETS]
    requests = [(lora, client.send("infer", params(*SETS[lora], cache_prompt=False))) for lora in (0, 1, 2, 3, 1, 0)]
    for lora, request in requests:
        assert client.response(request)["result"]["text"] == alone[lora]


def test_a_stream_with_one_set_goes_on_beside_an_endless_one_with_another(client: RawClient) -> None:
    endless = client.send("infer_stream", params(("two", 1.0), max_tokens=400))
    client.first_chunk(endless)
    assert client.result("infer", params(("one", 1.0)))["usage"]["completion_tokens"] == 24
    assert "result" in client.response(endless)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_an_adapter_that_the_model_does_not_have_is_said_to_be_lacking(client: RawClient, scale: float) -> None:
    error = client.call("infer", params(("three", scale)))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "adapter")


def test_an_adapter_named_twice_is_a_mistake(client: RawClient) -> None:
    error = client.call("infer", params(("one", 1.0), ("one", 0.5)))["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "lora")


def test_the_adapters_are_listed_with_their_model(client: RawClient) -> None:
    (model,) = [each for each in client.result("models/list")["models"] if each["name"] == "base"]
    assert model["adapters"] == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("base", "the adapter bad: the file is not a LoRA adapter"),
        ("wide", "an adapter's file is not one that llama.cpp can load for this model"),
    ],
)
def test_a_file_that_is_no_adapter_of_the_model_fails_the_start(
    folder: Path, start: Callable[..., Daemon], file: str, why: str
) -> None:
    generate(folder / "base.gguf", "tiny", "q8_0")
    generate_adapter(folder / "wide.gguf", "135m", rank=1)
    config = (
        f'default_model = "base"\n[models.base]\npath = "{folder}/base.gguf"\n'
        f'adapters = {{ bad = "{folder}/{file}.gguf" }}\n'
    )
    daemon = start(*configured(folder, config))
    assert daemon.process.wait(timeout=PATIENCE_S) == 69
    assert why in daemon.log.read_text()


def engine(client: RawClient) -> Json:
    """Return what the status says of the engine of `base`."""
    (model,) = [each for each in client.result("daemon/status")["models"] if each["name"] == "base"]
    (found,) = model["engines"]
    return dict(found)


@pytest.mark.slow
def test_what_waits_for_an_adapter_that_the_next_engine_does_not_have_is_refused_by_it(
    folder: Path, start: Callable[..., Daemon]
) -> None:
    generate(folder / "base.gguf", "tiny", "q8_0")
    generate_adapter(folder / "one.gguf", "tiny", seed=1)
    config = (
        'default_model = "base"\n[capacity]\nsequences = 1\n'
        f'[models.base]\npath = "{folder}/base.gguf"\ncontext_tokens = 512\n'
    )
    daemon = start(*configured(folder, f'{config}adapters = {{ one = "{folder}/one.gguf" }}\n'))
    with daemon.ready().connect() as client, daemon.connect() as admin:
        client.first_chunk(client.send("infer_stream", params(max_tokens=400)))
        adapted, plain = (client.send("infer", params(*lora)) for lora in ((("one", 1.0),), ()))
        client.result("tokenize", {"text": "what is answered after it is prepared after it"})
        pid = engine(admin)["pid"]
        os.kill(pid, signal.SIGSTOP)  # the stream does not end before
        configured(folder, config)
        admin.result("daemon/reload")
        os.kill(pid, signal.SIGKILL)
        assert client.response(adapted)["error"]["data"]["lacks"] == "adapter"
        assert client.response(plain)["result"]["usage"]["completion_tokens"] == 24
        assert engine(admin)["restarts"] == 1
