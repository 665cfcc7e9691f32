"""A chat template of the user's own, in place of the model's."""

from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, Json, configured, conversation, greedy, running
from tools.random_model import generate

pytestmark = pytest.mark.slow
CHAT: Json = {"messages": conversation("Hi"), "max_tokens": 2, "seed": 1}
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def table(name: str, path: Path, template: Path | None = None) -> str:
    own = "" if template is None else f'chat_template = "{template}"\n'
    return f'[models.{name}]\npath = "{path}"\ncontext_tokens = 256\nsequences = 1\n{own}'


def test_a_model_chats_with_the_template_that_it_is_given(folder: Path) -> None:
    generate(folder / "bare.gguf", "tiny", "q8_0")
    given = folder / "chat.jinja"
    given.write_text(TEMPLATE)
    config = table("own", folder / "bare.gguf") + table("given", folder / "bare.gguf", given)
    with running(folder, *configured(folder, config)) as daemon, daemon.connect() as client:
        own, usage = (client.result("infer", CHAT | {"model": name})["usage"] for name in ("own", "given"))
        tokens = client.result("tokenize", {"model": "given", "text": "Hi ", "add_special": True})["tokens"]
        assert usage["prompt_tokens"] == len(tokens) < own["prompt_tokens"]
        shown = {name: client.result("models/show", {"model": name})["file"] for name in ("own", "given")}
        assert shown["given"]["chat_template"] == TEMPLATE != shown["own"]["chat_template"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "the chat template: the file cannot be read"),
        (b"\xff\xfe", "the chat template cannot be read"),
        (
            b"{% for message in %}",
            "the chat template is not valid Jinja: line 1: Expected an expression, got 'end of statement block'",
        ),
    ],
)
def test_a_template_that_cannot_be_used_fails_its_model_alone_and_says_why(
    folder: Path, text: bytes | None, why: str
) -> None:
    generate(folder / "bare.gguf", "tiny", "q8_0")
    given = folder / "chat.jinja"
    if text is not None:
        given.write_bytes(text)
    with (
        running(folder, *configured(folder, table("given", folder / "bare.gguf", given))) as daemon,
        daemon.connect() as client,
    ):
        assert client.call("infer", CHAT | {"model": "given"})["error"]["data"]["why"] == why
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
