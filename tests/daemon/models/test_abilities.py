"""Abilities of models that are not loaded: by the header, read again once the file has changed."""

import os
from pathlib import Path

import pytest

from car_base.ipc.types import Tags
from car_daemon.models.entry import ModelEntry
from car_daemon.models.inspection import Abilities, inspect, read_abilities
from car_daemon.models.settings import ModelSettings
from tests.daemon.gguf.files import model, text, u32
from tests.daemon.links import ready_of
from tools.random_models.audio_projector import generate_audio_projector
from tools.random_models.embedding import generate_embedding
from tools.random_models.llama import generate
from tools.random_models.projector import generate_projector

SHOWS = "{% for tool in tools %}{{ tool }}{% endfor %}{% for message in messages %}{{ message.content }}{% endfor %}"
TOOLS = "<tool_call>" + SHOWS
THINKS = "{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}"


def entry(path: Path, **settings: object) -> ModelEntry:
    return ModelEntry("m", ModelSettings(path, **settings), default=False, on_change=lambda _: None)  # type: ignore[arg-type]  # any of its members


@pytest.mark.parametrize(
    ("template", "can"),
    [
        (None, []),
        ("{{ messages }} are tools", ["chat"]),
        (SHOWS, ["chat"]),
        (TOOLS, ["chat", "tools"]),
        (THINKS, ["chat", "thinking"]),
        (TOOLS + THINKS, ["chat", "tools", "thinking"]),
    ],
)
def test_a_template_says_what_its_model_can(tmp_path: Path, template: str | None, can: list[str]) -> None:
    given = {} if template is None else {"tokenizer__chat_template": text(template)}
    path = model(**given).write(tmp_path / "m.gguf")
    assert read_abilities(ModelSettings(path)) == ["generate", *can, *(["decide"] if can else []), "embed"]


@pytest.mark.parametrize(("family", "decides"), [("lev", True), ("kev", False), ("unheard", False)])
def test_a_model_of_a_decision_family_decides_if_it_is_read_at_labels(
    tmp_path: Path, family: str, decides: bool
) -> None:
    given = {"tokenizer__chat_template": text(SHOWS), "llama__decision__type": text(family)}
    path = model(**given).write(tmp_path / "m.gguf")
    assert "decide" not in read_abilities(ModelSettings(path))  # without a template to ask by
    path = model(**given, tokenizer__chat_template__systemone=text(SHOWS)).write(tmp_path / "m.gguf")
    assert ("decide" in read_abilities(ModelSettings(path))) == decides


@pytest.mark.parametrize("architecture", ["llada", "t5", "eagle3", "wavtokenizer-dec"])
async def test_a_model_of_an_architecture_that_is_not_served_can_do_nothing(tmp_path: Path, architecture: str) -> None:
    given = {"general__architecture": text(architecture), "tokenizer__chat_template": text(SHOWS)}
    abilities, found = Abilities(), entry(model(**given).write(tmp_path / "m.gguf"))
    await abilities.look([found])
    assert (abilities.of(found), abilities.unread([found])) == ([], [])


def test_configured_syntax_counts(tmp_path: Path) -> None:
    path = model(tokenizer__chat_template=text(SHOWS)).write(tmp_path / "m.gguf")
    settings = ModelSettings(path, tool_style="llama3", thinking_tags=Tags("<a>", "</a>"))
    assert read_abilities(settings) == ["generate", "chat", "tools", "thinking", "decide", "embed"]
    file = inspect(settings).file
    assert (file.tool_style, file.thinking_tags) == ("llama3", ["<a>", "</a>"])


def test_a_configured_template_and_a_projector_count(tmp_path: Path) -> None:
    path = model(tokenizer__chat_template=text(TOOLS)).write(tmp_path / "m.gguf")
    (tmp_path / "own.jinja").write_text(THINKS)
    settings = ModelSettings(path, chat_template=tmp_path / "own.jinja", projector=tmp_path / "p.gguf")
    for write, kind in ((generate_projector, "images"), (generate_audio_projector, "audio")):
        write(tmp_path / "p.gguf")
        assert read_abilities(settings) == ["generate", "chat", kind, "thinking", "decide", "embed"]


def test_tokens_that_fill_are_found_by_their_keys_or_by_their_texts(tmp_path: Path) -> None:
    names = ("fim_pre", "fim_suf", "fim_mid")
    by_key = model(**{f"tokenizer__ggml__{name}_token_id": u32(1) for name in names}).write(tmp_path / "key.gguf")
    assert "fill" in read_abilities(ModelSettings(by_key))
    texts = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    for count in (3, 2):
        generate(tmp_path / "text.gguf", "tiny", "q8_0", extra_tokens=dict.fromkeys(texts[:count], True))
        assert ("fill" in read_abilities(ModelSettings(tmp_path / "text.gguf"))) == (count == 3)


def test_a_model_of_vectors_only_embeds(tmp_path: Path) -> None:
    generate_embedding(tmp_path / "m.gguf")
    assert read_abilities(ModelSettings(tmp_path / "m.gguf")) == ["embed"]


async def test_a_header_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"a")
    reads: list[Path] = []

    def read(settings: ModelSettings) -> list[str]:
        reads.append(settings.path)
        return ["generate"]

    abilities, model = Abilities(read), entry(path)
    assert abilities.of(model) == []
    for _ in range(2):
        await abilities.look([model])
    assert (abilities.of(model), len(reads)) == (["generate"], 1)
    os.utime(path, (1, 1))
    assert abilities.unread([model]) == [model]
    await abilities.look([model])
    assert len(reads) == 2


async def test_a_file_that_is_not_a_model_can_do_nothing_and_is_not_read_again(tmp_path: Path) -> None:
    abilities, model = Abilities(), entry(tmp_path / "none.gguf")
    await abilities.look([model])
    assert (abilities.of(model), abilities.unread([model])) == ([], [])


async def test_a_loaded_model_has_the_abilities_that_its_engine_reports(tmp_path: Path) -> None:
    abilities, model = Abilities(), entry(tmp_path / "none.gguf")
    model.replicas[0].ready = ready_of()
    assert abilities.unread([model]) == []
    assert abilities.of(model) == model.replicas[0].ready.can
