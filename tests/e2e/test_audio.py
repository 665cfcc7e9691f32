"""Sounds in conversations, on a generated model with a projector of audio."""

import base64
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.door.support import door_before
from tests.e2e.support import Daemon, Json, RawClient, configured, conversation, running
from tests.e2e.test_images import Thought, asked
from tests.engine.images.pictures import png
from tests.engine.images.sounds import mp3, wav, wav_of
from tools.random_model import generate
from tools.random_models.audio_projector import AUDIO_TOKENS, generate_audio_projector


@pytest.fixture(scope="module")
def hearing() -> Iterator[Daemon]:
    """A daemon with a model with a projector of audio, the same that is not loaded, and one without."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "base.gguf", "tiny", "f32")
        generate_audio_projector(folder / "ears.gguf", "tiny")
        model = f'path = "{folder}/base.gguf"\nsequences = 3\ncontext_tokens = 512\n'
        ears = f'projector = "{folder}/ears.gguf"\n'
        config = (
            f'default_model = "base"\n[models.base]\n{model}{ears}[models.later]\n{model}{ears}[models.deaf]\n{model}'
        )
        with running(folder, *configured(folder, config)) as daemon:
            yield daemon


@pytest.fixture
def ears(hearing: Daemon) -> Iterator[RawClient]:
    """A connection to it."""
    with hearing.connect() as client:
        yield client


def sound(data: bytes) -> Json:
    return {"type": "audio", "data": base64.b64encode(data).decode()}


def test_a_sound_takes_its_positions_and_changes_the_answer(ears: RawClient) -> None:
    low, high, silent = (sound(data) for data in (wav(1, 200), wav(1, 3000), mp3()))
    answers = [ears.result("infer", asked("what is ", each, " here?")) for each in (low, high, silent)]
    plain = ears.result("infer", asked("what is ", " here?"))
    assert len({str(Thought(each)) for each in (*answers, plain)}) == 4
    tokens = {each["usage"]["prompt_tokens"] for each in answers}
    assert len(tokens) == 1
    assert tokens.pop() >= plain["usage"]["prompt_tokens"] + AUDIO_TOKENS - 1


def test_a_streamed_answer_to_two_sounds_is_the_whole_one(ears: RawClient) -> None:
    params = asked("first ", sound(wav(1, 300)), "then ", sound(wav(31, 900)), cache_prompt=False)
    whole = ears.result("infer", params)
    chunks, end = ears.stream(params)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert end["result"]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_the_second_turn_has_the_sound_in_its_cache(ears: RawClient) -> None:
    params = asked(sound(wav(2, 700)), "once more")
    first = ears.result("infer", params)
    turns = [*params["messages"], {"role": "assistant", "content": first["text"]}, {"role": "user", "content": "and?"}]
    second = ears.result("infer", {**params, "messages": turns})
    assert second["usage"]["cached_tokens"] > AUDIO_TOKENS


def test_a_text_goes_on_while_a_sound_is_encoded(ears: RawClient) -> None:
    text = ears.send("infer", {"messages": conversation("words alone"), "max_tokens": 40, "ignore_eos": True})
    audio = ears.send("infer", asked(sound(wav(60, 500)), "heard?"))
    assert ears.response(text)["result"]["usage"]["completion_tokens"] == 40
    assert "result" in ears.response(audio)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not a sound", "not a WAV or MP3"),
        (wav()[:-100], "damaged"),
        (mp3()[:-100], "damaged"),
        (wav_of(b""), "no samples"),
        (wav_of(bytes(1000), rate=1_000_000), "1,000,000 samples a second"),
        (wav_of(bytes(301 * 8000), rate=8000, bits=8), "max_audio_s is 300"),
        (png(56, 56), "not a WAV or MP3"),
    ],
)
def test_a_bad_sound_is_refused_with_the_reason(ears: RawClient, data: bytes, why: str) -> None:
    error = ears.call("infer", asked(sound(data), "what?"))["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "messages")
    assert why in error["data"]["why"]


def test_sounds_that_are_too_long_together_are_refused(ears: RawClient) -> None:
    minute = sound(wav_of(bytes(101 * 8000), rate=8000, bits=8))
    error = ears.call("infer", asked(minute, minute, minute))["error"]
    assert error["data"]["why"] == "the audio of the request has 303 s, max_audio_s is 300: send a shorter part"


def test_an_image_beside_a_sound_needs_a_projector_of_images(ears: RawClient) -> None:
    image = {"type": "image", "data": base64.b64encode(png(56, 56)).decode()}
    error = ears.call("infer", asked(sound(wav()), image))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "images")


def test_a_model_without_a_projector_of_audio_refuses_sounds(ears: RawClient) -> None:
    error = ears.call("infer", asked(sound(wav()), "what?", model="deaf"))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "audio")


def test_the_models_have_audio_by_their_projectors_loaded_or_not(ears: RawClient) -> None:
    can = {each["name"]: each["can"] for each in ears.result("models/list")["models"]}
    assert "audio" in can["base"]
    assert "audio" in can["later"]
    assert "audio" not in can["deaf"]
    assert all("images" not in each for each in can.values())


def test_a_sound_by_the_http_door_is_the_one_by_the_socket(hearing: Daemon, ears: RawClient) -> None:
    spoken = wav(1, 200)
    by_socket = ears.result("infer", asked("what is ", sound(spoken), " here?"))
    text = [{"type": "text", "text": text} for text in ("what is ", " here?")]
    part = {"type": "input_audio", "input_audio": {"data": sound(spoken)["data"], "format": "wav"}}
    chat = {"messages": [{"role": "user", "content": [text[0], part, text[1]]}], "max_tokens": 1}
    with tempfile.TemporaryDirectory(prefix="card-") as name, door_before(Path(name), hearing.path) as door:
        request = urllib.request.Request(
            f"{door.url}/v1/chat/completions",
            json.dumps(chat).encode(),
            {"Authorization": f"Bearer {door.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            by_door = json.load(answer)
    assert by_door["usage"]["prompt_tokens"] == by_socket["usage"]["prompt_tokens"]
