"""`/v1/audio/transcriptions`: OpenAI's client, unmodified, before models with and without ears."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import DoorProcess, OfflineDoor, door_before
from tests.e2e.support import configured, running
from tests.engine.images.sounds import mp3, wav
from tools.random_model import generate
from tools.random_models.audio_projector import generate_audio_projector

openai = pytest.importorskip("openai")
PATH = "/v1/audio/transcriptions"


def form(*parts: tuple[str, bytes]) -> tuple[bytes, str]:
    """Return the body of a form with these parts, and its content type."""
    head = b'--frontier\r\ncontent-disposition: form-data; name="%s"\r\n\r\n'
    pieces = [head % name.encode() + content + b"\r\n" for name, content in parts]
    return b"".join(pieces) + b"--frontier--\r\n", "multipart/form-data; boundary=frontier"


async def posted(offline: OfflineDoor, *parts: tuple[str, bytes]) -> Any:
    body, kind = form(*parts)
    return await offline.post(PATH, body, content_type=kind)


def hears(fake: FakeDaemon, *names: str) -> None:
    """Have the daemon serve a deaf model and models with ears."""
    (first,) = fake.answers["models/list"]["models"]
    deaf = first | {"can": ["generate", "chat"]}
    ears = [first | {"name": name, "default": False, "can": ["generate", "chat", "audio"]} for name in names]
    fake.answers["models/list"] = {"models": [deaf, *ears]}


async def test_a_recording_is_asked_for_with_a_fixed_instruction(offline: OfflineDoor, fake: FakeDaemon) -> None:
    hears(fake, "ears")
    fake.answers["infer"] = ANSWER | {"text": " Guten Tag\n"}
    answer = await posted(
        offline, ("file", wav()), ("model", b"whisper-1"), ("language", b"de"), ("prompt", b"Gr\xc3\xbc\xc3\x9fe")
    )
    assert answer.status == 200
    assert answer.json["text"] == "Guten Tag"
    assert answer.json["usage"]["type"] == "tokens"
    params = fake.params("infer")
    assert (params["model"], params["temperature"], params["reasoning"]) == ("ears", 0, "off")
    sound, text = params["messages"][0]["content"]
    assert sound["type"] == "audio"
    assert "Transcribe" in text["text"]
    assert "`de`" in text["text"]
    assert "Grüße" in text["text"]


async def test_a_machine_without_ears_says_so(offline: OfflineDoor, fake: FakeDaemon) -> None:
    hears(fake)
    answer = await posted(offline, ("file", wav()), ("model", b"whisper-1"))
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_by_model")
    assert "no model of this machine takes sounds" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("model", b"ears")], "file"),
        ([("file", b"x"), ("response_format", b"srt")], "response_format"),
        ([("file", b"x"), ("response_format", b"text"), ("stream", b"true")], "response_format"),
        ([("file", b"x"), ("temperature", b"warm")], "temperature"),
        ([("file", b"x"), ("stream", b"perhaps")], "stream"),
    ],
)
async def test_a_part_that_cannot_be_served_is_named(
    offline: OfflineDoor, fake: FakeDaemon, parts: list[tuple[str, bytes]], param: str
) -> None:
    hears(fake, "ears")
    answer = await posted(offline, *parts)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_a_body_of_json_is_told_to_be_a_form(offline: OfflineDoor) -> None:
    answer = await offline.post(PATH, {"model": "ears"})
    assert (answer.status, answer.json["error"]["param"]) == (400, "file")


@pytest.fixture(scope="module")
def place() -> Iterator[DoorProcess]:
    """A door before a daemon with a deaf default model and one with ears."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "base.gguf", "tiny", "f32")
        generate_audio_projector(folder / "ears.gguf", "tiny")
        model = f'path = "{folder}/base.gguf"\nsequences = 2\ncontext_tokens = 512\ndefault_max_tokens = 12\n'
        ears = f'projector = "{folder}/ears.gguf"\n'
        config = f'default_model = "deaf"\n[models.deaf]\n{model}[models.ears]\n{model}{ears}'
        with running(folder, *configured(folder, config)) as daemon, door_before(folder, daemon.path) as door:
            yield door


@pytest.fixture
def client(place: DoorProcess) -> Iterator[Any]:
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=place.key, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("model", ["ears", "whisper-1"])
def test_openais_client_has_its_transcription_whole_in_text_and_in_events(client: Any, model: str) -> None:
    recording = ("speech.wav", wav(2, 300))
    whole = client.audio.transcriptions.create(model=model, file=recording)
    assert whole.text
    text = client.audio.transcriptions.create(model=model, file=recording, response_format="text")
    assert text.strip() == whole.text
    events = list(client.audio.transcriptions.create(model=model, file=recording, stream=True))
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert "".join(event.delta for event in events[:-1]).strip() == whole.text
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", whole.text)
    assert events[-1].usage.total_tokens == whole.usage.total_tokens
    assert client.audio.transcriptions.create(model=model, file=("speech.mp3", mp3())).text


def test_a_model_without_ears_and_a_file_that_is_no_sound_are_refused_by_name(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="audio"):
        client.audio.transcriptions.create(model="deaf", file=("speech.wav", wav()))
    with pytest.raises(openai.BadRequestError, match="not a WAV or MP3") as error:
        client.audio.transcriptions.create(model="ears", file=("speech.wav", b"no sound"))
    assert error.value.param == "file"
