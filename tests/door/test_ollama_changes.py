"""Models that Ollama's clients pull, copy, create and delete: tables of card.toml, as `carctl models` writes them."""

import asyncio
import hashlib
import json
import threading
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from car_client.carctl.adopt.candidates import Candidate
from car_client.carctl.hub.remote import Hub, Piece, PullError, RemoteFile
from car_client.door.keys import digest_of
from car_protocol.hub import HubFile
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model
from tests.door.support import Answer, OfflineDoor
from tests.pace import HANG_S

CONTENT = b"GGUF" + b"x" * 3_000_000
REPO, FILE = "owner/repo", "repo-Q4_K_M.gguf"
OWN: dict[str, dict[str, Any]] = {
    "mine": {"path": "/m/mine.gguf", "temperature": 0.5, "aliases": ["writer"], "pinned": True},
    "pulled": {"hf": f"{REPO}/{FILE}"},
}


class ScriptedHub(Hub):
    """A hub of one repository; its file comes in pieces of a third, each once `goes_on` is set."""

    def __init__(self) -> None:
        self.repos: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = threading.Event()

    def files(self, repo: str, revision: str | None) -> list[str]:
        """Return the one file's path; raises PullError for another repository."""
        self.repos.append(repo)
        if repo.startswith("nobody/"):
            raise PullError(f"there is no repository {repo}, or it is private and HF_TOKEN may not read it")
        return ["README.md", FILE]

    def look_up(self, file: HubFile, revision: str | None) -> RemoteFile:
        """Return the file."""
        return RemoteFile(file, "", "c" * 40, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

    def pieces(self, remote: RemoteFile, start: int) -> Iterator[Piece]:
        """Yield the rest of the file."""
        step = len(CONTENT) // 3 + 1
        for at in range(start, len(CONTENT), step):
            yield Piece(at, CONTENT[at : at + step])
            self.began.set()
            assert self.goes_on.wait(HANG_S)


@pytest.fixture
def hub() -> ScriptedHub:
    return ScriptedHub()


@pytest.fixture
def config(folder: Path) -> Path:
    path = folder / "card.toml"
    lines = ["# mine\n", 'default_model = "mine"\n']
    for name, table in OWN.items():
        lines += [f"[models.{name}]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in table.items())]
    path.write_text("".join(lines))
    return path


@pytest.fixture
async def door(fake: FakeDaemon, folder: Path, config: Path, hub: ScriptedHub) -> AsyncIterator[OfflineDoor]:
    def listed(_: Any) -> Any:
        tables = tomllib.loads(config.read_text())["models"].items()
        return {"models": [model(), *(model(name=name) | {"aliases": t.get("aliases", [])} for name, t in tables)]}

    fake.answers |= {"daemon/reload": {}, "models/list": listed}
    stored = [
        Candidate("llama3.2:3b", {"path": "/o/1", "system": "Be brief."}, ("writer:3b",)),
        Candidate("moved:1b", why_not="the blob of its model is not there"),
    ]
    async with OfflineDoor(fake.path, folder / "http-keys", stored=stored, hub=hub, models=folder / "models") as made:
        yield made


def tables(config: Path) -> dict[str, Any]:
    """Return the models of the file, whose comment stayed."""
    text = config.read_text()
    assert text.startswith("# mine")
    models: dict[str, Any] = tomllib.loads(text)["models"]
    return models


def text_of(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text()


def append(path: Path, text: str) -> None:
    """Add lines to a file."""
    path.write_text(path.read_text() + text)


def templates(folder: Path) -> list[Path]:
    """Return the files of templates."""
    return list((folder / "created-templates").iterdir())


async def test_a_file_of_the_hub_is_pulled_with_lines_that_show_how_far_it_is(
    door: OfflineDoor, fake: FakeDaemon, config: Path, folder: Path
) -> None:
    lines = (await door.post("/api/pull", {"model": "hf.co/owner/repo:Q4_K_M"})).lines
    assert [line["status"] for line in lines[:1]] == ["pulling manifest"]
    shown = [(line["completed"], line["total"]) for line in lines if "digest" in line]
    assert shown == sorted(shown)
    assert shown[-1] == (len(CONTENT), len(CONTENT))
    assert lines[-1] == {"status": "success"}
    assert tables(config) == OWN | {"hf.co/owner/repo:Q4_K_M": {"hf": f"{REPO}/{FILE}"}}
    assert (folder / "models" / REPO / FILE).read_bytes() == CONTENT
    assert [call.method for call in fake.calls].count("daemon/reload") == 1
    again = await door.post("/api/pull", {"name": "hf.co/owner/repo:Q4_K_M", "stream": False})
    assert (again.status, again.json) == (200, {"status": "success"})


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("llama3.2:3b", {"path": "/o/1", "system": "Be brief."}),
        ("writer:3b", {"path": "/o/1", "system": "Be brief."}),
        ("qwen3:4b", {"hf": f"Qwen/Qwen3-4B-GGUF/{FILE}"}),
        ("gemma3:1b", {"hf": f"ggml-org/gemma-3-1b-it-GGUF/{FILE}"}),
    ],
)
async def test_a_name_with_a_known_file_is_pulled(
    door: OfflineDoor, config: Path, name: str, table: dict[str, Any]
) -> None:
    assert (await door.post("/api/pull", {"model": name, "stream": False})).json == {"status": "success"}
    assert tables(config)[name] == table


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("moved:1b", 400, "is not there"),
        ("mystery:7b", 404, "hf.co/OWNER/REPO"),
        ("hf.co/nobody/nothing", 400, "no repository"),
        ("hf.co/owner/repo:Q9", 400, "no file in Q9; there are: Q4_K_M"),
        ("hf.co/owner", 400, "hf.co/OWNER/REPO"),
        ("", 400, "give the name"),
    ],
)
async def test_a_pull_that_cannot_be_says_what_to_do_whole_and_in_lines(
    door: OfflineDoor, config: Path, name: str, status: int, words: str
) -> None:
    before = text_of(config)
    whole = await door.post("/api/pull", {"model": name, "stream": False})
    assert (whole.status, words in whole.json["error"]) == (status, True), whole.body
    assert words in (await door.post("/api/pull", {"model": name})).lines[-1]["error"]
    assert text_of(config) == before


async def test_a_pull_ends_when_its_client_leaves_and_keeps_its_part(
    door: OfflineDoor, config: Path, folder: Path, hub: ScriptedHub
) -> None:
    hub.goes_on.clear()
    body, before = {"model": "hf.co/owner/repo"}, text_of(config)
    async with door.posting("/api/pull", body) as answer:
        await asyncio.to_thread(hub.began.wait, HANG_S)
        answer.left.set()
        await asyncio.sleep(0)  # the door's task that waits for the end
        await asyncio.sleep(0)
        hub.goes_on.set()
    assert b"success" not in answer.body
    assert text_of(config) == before
    (part,) = (folder / "models" / REPO).iterdir()
    assert part.name.endswith(".part")


async def test_a_model_gets_a_further_name_and_loses_it_again(door: OfflineDoor, config: Path) -> None:
    copied = await door.post("/api/copy", {"source": "writer:latest", "destination": "gpt:latest"})
    assert (copied.status, copied.body) == (200, b"")
    assert tables(config)["mine"]["aliases"] == ["writer", "gpt"]
    assert (await deleted(door, "gpt")).status == 200
    assert tables(config) == OWN
    assert (await deleted(door, "writer")).status == 200
    assert "aliases" not in tables(config)["mine"]


async def test_a_pulled_model_is_deleted_with_its_file_and_another_model_without(
    door: OfflineDoor, config: Path, folder: Path
) -> None:
    await door.post("/api/pull", {"model": "hf.co/owner/repo", "stream": False})
    file = folder / "models" / REPO / FILE
    assert (await deleted(door, "pulled")).status == 200
    assert file.is_file()  # another model has it
    assert (await deleted(door, "hf.co/owner/repo:latest")).status == 200
    assert not file.exists()
    assert list(tables(config)) == ["mine"]


async def test_a_created_model_has_settings_of_its_own_beside_the_file_of_another(
    door: OfflineDoor, config: Path, folder: Path
) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    parameters = {"temperature": 0.1, "num_ctx": 2048, "num_predict": -1, "top_p": None}
    body = {"model": "pirate", "from": "writer", "system": "Be a pirate.", "parameters": parameters}
    assert (await door.post("/api/create", body | {"template": template})).lines[-1] == {"status": "success"}
    made = tables(config)["pirate"]
    assert text_of(Path(made.pop("chat_template"))) == template
    own = {"path": "/m/mine.gguf", "temperature": 0.1, "context_tokens": 2048, "system": "Be a pirate."}
    assert made == own
    assert len(templates(folder)) == 1
    again = {"model": "pirate:latest", "from": "mine", "stream": False, "license": "MIT"}
    assert (await door.post("/api/create", again)).json == {"status": "success"}
    assert tables(config)["pirate"] == {"path": "/m/mine.gguf", "temperature": 0.5}
    assert templates(folder) == []
    made_default = {"model": "mine", "from": "mine", "parameters": {"top_p": 0.5}, "stream": False}
    assert (await door.post("/api/create", made_default)).status == 200
    assert 'default_model = "mine"' in text_of(config)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/create", {"model": "x", "from": "mine", "template": "{{ .Prompt }}"}, "template: send a Jinja"),
        ("/api/create", {"model": "x", "from": "mine", "parameters": {"stop": ["a"]}}, "parameters.stop"),
        ("/api/create", {"model": "x", "from": "mine", "files": {"a.gguf": "sha256:1"}}, "files: "),
        ("/api/create", {"model": "x", "from": "mine", "messages": [{"role": "user"}]}, "messages: "),
        ("/api/create", {"model": "x", "from": "mine", "quantize": "q4_K_M"}, "quantize: "),
        ("/api/create", {"model": "x"}, "from: "),
        ("/api/create", {"model": "writer", "from": "mine", "stream": False}, "another model"),
        ("/api/create", {"model": "pulled", "from": "mine", "stream": False}, "another file"),
        ("/api/create", {"model": "x", "from": "guide", "stream": False}, "is not in"),
        ("/api/copy", {"source": "mine", "destination": "pulled"}, "destination: "),
        ("/api/copy", {"source": "guide", "destination": "x"}, "is not in"),
        ("/api/copy", {"source": "other", "destination": "x"}, "not found"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_by_its_name(
    door: OfflineDoor, config: Path, path: str, body: dict[str, Any], words: str
) -> None:
    before = text_of(config)
    answer = await door.post(path, body)
    assert (answer.status in (400, 404), words in answer.json["error"]) == (True, True), answer.body
    assert text_of(config) == before


async def test_a_deleted_model_is_the_default_one_no_more_and_others_are_not_deleted(
    door: OfflineDoor, config: Path
) -> None:
    for name, status in [("guide", 400), ("other", 404), ("mine", 200)]:
        assert (await deleted(door, name)).status == status
    assert list(tables(config)) == ["pulled"]
    assert "default_model" not in text_of(config)


async def test_a_file_that_the_daemon_cannot_serve_leaves_the_configuration_as_it_was(
    door: OfflineDoor, fake: FakeDaemon, config: Path
) -> None:
    before = text_of(config)
    fake.answers["models/show"] = {"model": model(name="x"), "why": "it is no model"}
    answer = await door.post("/api/create", {"model": "x", "from": "mine", "stream": False})
    assert (answer.status, "it is no model" in answer.json["error"]) == (400, True)
    assert text_of(config) == before


async def test_a_person_changes_no_models_in_ollamas_dialect(door: OfflineDoor, config: Path) -> None:
    secret = "card-" + "p" * 20
    append(config, f'[people.ada]\nkey = "{digest_of(secret)}"\n')
    before = text_of(config)
    headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {secret}"}
    for method, path, body in [
        ("POST", "/api/pull", {"model": "qwen3:4b"}),
        ("POST", "/api/create", {"model": "x", "from": "mine"}),
        ("POST", "/api/copy", {"source": "mine", "destination": "x"}),
        ("DELETE", "/api/delete", {"model": "writer"}),
    ]:
        answer = await door.request(method, path, json.dumps(body).encode(), headers, unix=False)
        assert (answer.status, "people change no models" in answer.json["error"]) == (403, True)
    assert text_of(config) == before


async def deleted(door: OfflineDoor, name: str) -> Answer:
    """Return the answer to a deletion."""
    body = json.dumps({"model": name}).encode()
    return await door.request("DELETE", "/api/delete", body, {"content-type": "application/json"})
