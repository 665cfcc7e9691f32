"""Further names of models and their own defaults: in requests, in the list, and after a reload."""

from collections.abc import Callable
from pathlib import Path

import pytest

from car_base.guide import PATH
from tests.e2e.support import KNOWN, PATIENCE_S, Daemon, Json, configured, conversation, greedy

Start = Callable[..., Daemon]


def config(*lines: str) -> str:
    return "\n".join(['default_model = "mine"', "[models.mine]", f'path = "{PATH}"', *lines, ""])


def test_an_alias_names_its_model_everywhere_until_a_reload_takes_it_away(start: Start, folder: Path) -> None:
    daemon = start(*configured(folder, config('aliases = ["gpt-4o-mini", "small model"]'))).ready()
    with daemon.connect() as client:
        assert client.result("infer", greedy(KNOWN[0], model="gpt-4o-mini"))["model"] == "mine"
        for method, params in (
            ("inference/capacity", {}),
            ("tokenize", {"text": "a"}),
            ("models/show", {}),
            ("models/load", {}),
            ("embed", {"input": ["a"]}),
        ):
            client.result(method, {**params, "model": "small model"})
        listed = client.result("models/list")["models"]
        assert [model["aliases"] for model in listed if model["name"] == "mine"] == [["gpt-4o-mini", "small model"]]
        configured(folder, config('aliases = ["other"]'))
        client.result("daemon/reload")
        assert client.result("infer", greedy(KNOWN[0], model="other"))["text"] == KNOWN[0].answer
        assert client.reason("infer", greedy(KNOWN[0], model="gpt-4o-mini")) == "model_unavailable"
        configured(folder, config('aliases = ["guide"]'))
        error = client.call("daemon/reload")["error"]
        assert error["data"]["param"] == "models.mine.aliases"
        assert client.result("infer", greedy(KNOWN[0], model="other"))["text"] == KNOWN[0].answer


@pytest.mark.parametrize(
    "text",
    [
        '[models.a]\npath = "a.gguf"\naliases = ["b"]\n[models.b]\npath = "b.gguf"\n',
        '[models.a]\npath = "a.gguf"\naliases = ["x"]\n[models.b]\npath = "b.gguf"\naliases = ["x"]\n',
        '[models.a]\npath = "a.gguf"\naliases = [""]\n',
    ],
)
def test_an_alias_of_two_models_is_a_configuration_error(folder: Path, text: str) -> None:
    daemon = Daemon(folder, *configured(folder, text))
    assert daemon.process.wait(timeout=PATIENCE_S) == 78
    assert "aliases" in daemon.log.read_text()


def test_members_that_a_request_leaves_out_are_the_entrys_and_explicit_ones_win(start: Start, folder: Path) -> None:
    daemon = start(*configured(folder, config("temperature = 0", 'system = "You are a helpful assistant."'))).ready()
    asked: Json = {"messages": conversation(KNOWN[10].question)}
    with daemon.connect() as client:
        (mine,) = (model for model in client.result("models/list")["models"] if model["name"] == "mine")
        assert mine["defaults"] == {"temperature": 0.0, "system": "You are a helpful assistant."}
        system = {"role": "system", "content": "You are a helpful assistant."}
        by_hand = client.result("infer", {"messages": [system, *asked["messages"]], "temperature": 0})
        for seed in range(3):
            answer = client.result("infer", {**asked, "seed": seed})
            assert (answer["text"], answer["usage"]["prompt_tokens"]) == (
                by_hand["text"],
                by_hand["usage"]["prompt_tokens"],
            )
        counted = client.result("tokenize", {**asked, "count_only": True})
        assert counted["count"] == by_hand["usage"]["prompt_tokens"]
        loose = {"top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 30}
        wild = [client.result("infer", {**asked, **loose, "seed": seed, "temperature": 5}) for seed in range(3)]
        assert len({answer["text"] for answer in wild}) == 3
        configured(folder, config("temperature = 5"))
        client.result("daemon/reload")
        texts = {client.result("infer", {**asked, **loose, "seed": seed})["text"] for seed in range(3)}
        assert len(texts) == 3
