"""Chat templates that mean harm: the engine that runs one is replaced, and everything else is served."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, Daemon, Json, RawClient, configured, conversation, greedy, running
from tools.random_model import generate

pytestmark = pytest.mark.slow
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
AT_REQUEST = "{% if messages[0].content == 'wedge' %}" + LOOP + "{% endif %}{{ messages[0].content }}"


@contextmanager
def hosting(folder: Path, template: str) -> Iterator[Daemon]:
    """Run a daemon with the built-in model, and one that has the template."""
    generate(folder / "bare.gguf", "tiny", "q8_0")
    (folder / "chat.jinja").write_text(template)
    table = f'[models.odd]\npath = "{folder}/bare.gguf"\ncontext_tokens = 256\nsequences = 2\n'
    with running(folder, *configured(folder, f'{table}chat_template = "{folder}/chat.jinja"\n')) as daemon:
        yield daemon.ready()


def odd(text: str, **more: object) -> Json:
    return {"model": "odd", "messages": conversation(text), "max_tokens": 2, "seed": 1, **more}


def engine_of(client: RawClient, model: str) -> Json:
    models = client.result("daemon/status")["models"]
    engine: Json = next(each for each in models if each["name"] == model)["engines"][0]
    return engine


def test_a_request_whose_template_does_not_end_is_quarantined_and_the_ones_behind_it_run(folder: Path) -> None:
    with hosting(folder, AT_REQUEST) as daemon, daemon.connect() as client, daemon.connect() as other:
        client.result("infer", odd("Hi"))
        begun = time.monotonic()
        wedge = client.send("infer", odd("wedge"))
        behind = [client.send("infer", odd("Hi")) for _ in range(3)]
        for _ in range(5):
            assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        error = client.response(wedge)["error"]
        assert (error["data"]["reason"], error["data"]["quarantined"]) == ("engine_lost", True)
        assert [client.response(each)["result"]["usage"]["completion_tokens"] for each in behind] == [2, 2, 2]
        assert time.monotonic() - begun < 2 * (5 + 1 + 0.5) + 10
        assert (engine_of(client, "odd")["restarts"], engine_of(client, "guide")["restarts"]) == (2, 0)
    assert daemon.log.read_text().count("engine.stuck") == 2


def test_a_model_is_unloaded_while_its_template_does_not_end(folder: Path) -> None:
    with hosting(folder, AT_REQUEST) as daemon, daemon.connect() as client:
        client.result("infer", odd("Hi"))
        wedge = client.send("infer", odd("wedge", timeout_ms=500))
        assert client.response(wedge)["error"]["data"]["reason"] == "deadline_exceeded"
        begun = time.monotonic()
        client.result("models/unload", {"model": "odd"})
        assert time.monotonic() - begun < 10


def test_a_template_that_never_ends_fails_the_load_after_two_tries(folder: Path) -> None:
    with hosting(folder, LOOP) as daemon, daemon.connect() as client, daemon.connect() as other:
        asked = client.send("infer", odd("Hi"))
        for _ in range(5):
            assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        data = client.response(asked)["error"]["data"]
        assert (data["reason"], data["why"].split(";")[0]) == ("model_unavailable", "two loads died in the same way")
        assert "the chat template has been tried for" in data["why"]
    assert daemon.log.read_text().count("engine.stuck") == 2
