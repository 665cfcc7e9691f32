"""`reasoning` through the socket: models that think by themselves, when they are told to, or never."""

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.support import Json, RawClient, configured, conversation, running
from tools.random_model import generate

TURNS = "{% for message in messages %}{{ message.role ~ ': ' ~ message.content ~ ';' }}{% endfor %}"
TEMPLATES = {
    # The template closes the thought unless its caller sets a switch, as those of models that always think do.
    "thinker": TURNS + "{{ '<think>\n' }}{% if not enable_thinking %}{{ '</think>' }}{% endif %}",
    # The template opens a thought only where it is told to.
    "told": TURNS + "{% if thinking %}{{ '<think>\n' }}{% endif %}",
    "dated": "{{ date_string }};{{ strftime_now('%d %b %Y') }};" + TURNS,
}
OPENED = ["One", "</think>", "Two"]


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    """A client of models with these templates, whose words are tokens of their own."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        words = dict.fromkeys(("<think>", "</think>", "One", "Two"), False)
        generate(folder / "model.gguf", "tiny", "q8_0", extra_tokens=words)
        tables = ""
        for model, template in TEMPLATES.items():
            (folder / f"{model}.jinja").write_text(template)
            tables += f'[models.{model}]\npath = "{folder}/model.gguf"\nchat_template = "{folder}/{model}.jinja"\n'
            tables += "context_tokens = 256\nsequences = 1\n"
        with running(folder, *configured(folder, tables)) as daemon:
            daemon.ready()
            with daemon.connect() as found:
                yield found


def asked(client: RawClient, model: str, **more: object) -> Json:
    """Return params under which a model writes One, closes a thought, writes Two and ends."""
    params = {"model": model, "add_special": False, "parse_special": True}
    texts = (*OPENED, "<|end|>")
    tokens = [str(client.result("tokenize", {**params, "text": text})["tokens"][0]) for text in texts]
    biases = {token: 100 - 5 * place for place, token in enumerate(tokens)}
    once: Json = {"temperature": 0, "repeat_penalty": 10, "repeat_last_n": len(tokens), "logit_bias": biases}
    return {"model": model, "messages": conversation("Hi"), **once, **more}


def prompt(client: RawClient, model: str, **more: object) -> str:
    """Return the end of the prompt that `infer` computes."""
    tokens = client.result("tokenize", {"model": model, "messages": conversation("Hi"), **more})["tokens"]
    text: str = client.result("detokenize", {"model": model, "tokens": tokens, "special": True})["text"]
    return text.rpartition(";")[2]


@pytest.mark.parametrize(
    ("model", "reasoning", "end"),
    [
        ("thinker", "auto", "<think>\n"),
        ("thinker", "on", "<think>\n"),
        ("thinker", "off", "<think>\n</think>"),
        ("told", "auto", ""),
        ("told", "on", "<think>\n"),
        ("told", "off", ""),
    ],
)
def test_a_model_thinks_as_it_is_told(client: RawClient, model: str, reasoning: str, end: str) -> None:
    assert prompt(client, model, reasoning=reasoning) == end
    params = asked(client, model, reasoning=reasoning)
    whole = client.result("infer", params)
    chunks, _ = client.stream(params)
    streamed = ["".join(chunk.get(member, "") for chunk in chunks) for member in ("reasoning", "text")]
    assert [whole.get("reasoning", ""), whole["text"]] == streamed
    # A tag that the prompt has is not written again.
    text = "OneTwo" if "</think>" in end else "".join(OPENED)
    assert streamed == (["One", "Two"] if end == "<think>\n" else ["", text])


def test_thoughts_are_refused_by_a_model_without(client: RawClient) -> None:
    for model in ("dated", "guide"):
        (entry,) = [each for each in client.result("models/list")["models"] if each["name"] == model]
        assert "thinking" not in entry["can"]
        for method in ("infer", "tokenize"):
            params = {"model": model, "messages": conversation("Hi"), "reasoning": "on"}
            error = client.response(client.send(method, params))["error"]
            assert (error["code"], error["data"]["lacks"]) == (1004, "thinking")
            assert "leave `reasoning` out" in error["data"]["why"]
    models = client.result("models/list")["models"]
    assert all("thinking" in each["can"] for each in models if each["name"] in ("thinker", "told"))


def test_templates_get_today(client: RawClient) -> None:
    tokens = client.result("tokenize", {"model": "dated", "messages": conversation("Hi")})["tokens"]
    text: str = client.result("detokenize", {"model": "dated", "tokens": tokens})["text"]
    # The day may end during the test.
    today = datetime.now().astimezone()
    days = [f"{day:%d %b %Y}" for day in (today, today - timedelta(minutes=1))]
    date, clock, _ = text.split(";", 2)
    assert date in days
    assert clock in days
