"""Chat templates that mean harm: the engine that runs one is replaced, and everything else is served."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, Daemon, Json, RawClient, configured, conversation, greedy, running
from tools.random_model import generate

pytestmark = pytest.mark.slow
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
# A search from the right compares 10 million characters at each of 10 million places, and stops all threads meanwhile.
SEARCH = "{{ ('a' * 20000000).rfind('ab' ~ 'a' * 10000000) }}"
AT_REQUEST = "{{% if messages[0].content == 'wedge' %}}{}{{% endif %}}{{{{ messages[0].content }}}}"
TEMPLATES = {"searches": AT_REQUEST.format(SEARCH), "loops": AT_REQUEST.format(LOOP), "never": LOOP}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with the built-in model, and one for each template."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder, tables = Path(name), ""
        generate(folder / "bare.gguf", "tiny", "q8_0")
        for model, template in TEMPLATES.items():
            source = folder / f"{model}.jinja"
            source.write_text(template)
            tables += f'[models.{model}]\npath = "{folder}/bare.gguf"\nchat_template = "{source}"\n'
            tables += "context_tokens = 256\nsequences = 2\n"
        with running(folder, *configured(folder, tables)) as hosting:
            yield hosting.ready()


@pytest.fixture(scope="module", autouse=True)
def loading(daemon: Daemon) -> Iterator[tuple[RawClient, int]]:
    """A request that loads a model whose template never ends; the load goes on while the other tests run."""
    with daemon.connect() as client:
        yield client, client.send("infer", chat("never", "Hi"))


def chat(model: str, text: str, **more: object) -> Json:
    return {"model": model, "messages": conversation(text), "max_tokens": 2, "seed": 1, **more}


def engine_of(client: RawClient, model: str) -> Json:
    models = client.result("daemon/status")["models"]
    engine: Json = next(each for each in models if each["name"] == model)["engines"][0]
    return engine


def hangs(daemon: Daemon, model: str) -> int:
    lines = daemon.log.read_text().splitlines()
    return sum("engine.stuck" in line and model in line for line in lines)


def test_a_request_whose_template_does_not_end_is_quarantined_and_the_ones_behind_it_run(daemon: Daemon) -> None:
    with daemon.connect() as client, daemon.connect() as other:
        client.result("infer", chat("searches", "Hi"))
        wedge = client.send("infer", chat("searches", "wedge"))
        behind = [client.send("infer", chat("searches", "Hi")) for _ in range(3)]
        for _ in range(5):
            assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        error = client.response(wedge)["error"]
        assert (error["data"]["reason"], error["data"]["quarantined"]) == ("engine_lost", True)
        assert [client.response(each)["result"]["usage"]["completion_tokens"] for each in behind] == [2, 2, 2]
        assert (engine_of(client, "searches")["restarts"], engine_of(client, "guide")["restarts"]) == (2, 0)
    assert hangs(daemon, "searches") == 2


def test_a_model_is_unloaded_while_its_template_does_not_end(daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.result("infer", chat("loops", "Hi"))
        wedge = client.send("infer", chat("loops", "wedge", timeout_ms=500))
        assert client.response(wedge)["error"]["data"]["reason"] == "deadline_exceeded"
        client.result("models/unload", {"model": "loops"})
    assert hangs(daemon, "loops") == 0


def test_a_template_that_never_ends_fails_the_load_at_the_first_try(
    daemon: Daemon, loading: tuple[RawClient, int]
) -> None:
    with daemon.connect() as other:
        for _ in range(5):
            assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
    client, request = loading
    data = client.response(request)["error"]["data"]
    assert data["reason"] == "model_unavailable"
    assert data["why"].startswith("the load was ended by the daemon: the chat template has been tried for")
    assert hangs(daemon, "never") == 1
