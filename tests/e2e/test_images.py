"""Images in conversations, on a generated model with a projector."""

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.support import Daemon, Json, RawClient, configured, conversation, running
from tests.engine.images.pictures import png
from tools.random_model import generate
from tools.random_models.hybrid import generate_short_convolution
from tools.random_models.projector import IMAGE_TOKENS, generate_projector

# Of log probabilities: with others in its batch a row is computed by other code.
ROUNDING = 0.005


@contextmanager
def daemon_with_projector(settings: str = "sequences = 3", **environment: str) -> Iterator[Daemon]:
    """Run a daemon whose model has a projector."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "base.gguf", "tiny", "f32")
        generate_projector(folder / "eyes.gguf", "tiny")
        generate_short_convolution(folder / "states.gguf")
        config = (
            f'default_model = "base"\n[models.base]\npath = "{folder}/base.gguf"\n{settings}\ncontext_tokens = 512\n'
            # Guesses change the shape of a decode from one run to the next, and with it the last digits.
            f'projector = "{folder}/eyes.gguf"\nspeculative = false\n[people.ada]\n[people.bob]\n'
            f'[models.states]\npath = "{folder}/states.gguf"\nsequences = 1\ncontext_tokens = 512\n'
            f'projector = "{folder}/eyes.gguf"\n'
        )
        with running(folder, *configured(folder, config), **environment) as daemon:
            yield daemon


@pytest.fixture(scope="module")
def seeing() -> Iterator[Daemon]:
    """A daemon whose model sees."""
    with daemon_with_projector() as daemon:
        yield daemon


@pytest.fixture
def eyes(seeing: Daemon) -> Iterator[RawClient]:
    """A connection to it."""
    with seeing.connect() as client:
        yield client


def picture(shade: int, size: tuple[int, int] = (56, 56)) -> Json:
    return {"type": "image", "data": base64.b64encode(png(*size, (shade, 255 - shade, shade // 2))).decode()}


def asked(*parts: Json | str, **more: object) -> Json:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 3, **more}


def restarts(client: RawClient) -> list[int]:
    """Return how often each engine was started again."""
    models = client.result("daemon/status")["models"]
    return [engine["restarts"] for model in models for engine in model["engines"]]


class Thought:
    """The likeliest tokens of each place with their log probabilities, equal to others but for rounding.

    A row's sums depend on the rows beside it, and on the CPU's code for so many.
    """

    def __init__(self, result: Json) -> None:
        places = [each for place in result["logprobs"] for each in place["top"]]
        self._tokens = [each["token"] for each in places]
        self._logprobs = [each["logprob"] for each in places]

    def __repr__(self) -> str:
        return f"<Thought {list(zip(self._tokens, self._logprobs, strict=True))}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Thought) or self._tokens != other._tokens:
            return False
        return self._logprobs == pytest.approx(other._logprobs, abs=ROUNDING)


def test_an_image_takes_its_positions_and_changes_the_answer(eyes: RawClient) -> None:
    dark = eyes.result("infer", asked("what is ", picture(10), " here?"))
    bright = eyes.result("infer", asked("what is ", picture(240), " here?"))
    plain = eyes.result("infer", asked("what is ", " here?"))
    assert len({str(Thought(each)) for each in (dark, bright, plain)}) == 3
    tokens = [each["usage"]["prompt_tokens"] for each in (dark, bright, plain)]
    assert tokens[0] == tokens[1] >= tokens[2] + IMAGE_TOKENS - 1


def test_the_same_conversation_again_is_cached_with_its_image(eyes: RawClient) -> None:
    first = eyes.result("infer", asked(picture(77), "once more"))
    second = eyes.result("infer", asked(picture(77), "once more"))
    assert Thought(second) == Thought(first)
    assert second["usage"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1


def test_another_image_in_the_same_place_is_no_cache_hit(eyes: RawClient) -> None:
    eyes.result("infer", asked("the very same words, long enough to be kept for later", picture(1), "and more"))
    other = eyes.result("infer", asked("the very same words, long enough to be kept for later", picture(2), "and more"))
    alone = eyes.result(
        "infer",
        asked("the very same words, long enough to be kept for later", picture(2), "and more", cache_prompt=False),
    )
    assert Thought(other) == Thought(alone)
    assert 0 < other["usage"]["cached_tokens"] < other["usage"]["prompt_tokens"] - IMAGE_TOKENS


def test_a_reproducible_answer_to_images_is_the_same_cached_and_beside_others(eyes: RawClient) -> None:
    words = "many words before it, and as many after it. " * 4
    exact = asked(words, picture(9), words, picture(8), reproducible=True)
    alone = eyes.result("infer", exact)
    requests = [
        eyes.send("infer", each) for each in (asked(picture(3), words), exact, {**exact, "cache_prompt": False})
    ]
    _, cached, again = [eyes.response(request)["result"] for request in requests]
    assert cached["usage"]["cached_tokens"] > 200
    assert [each["logprobs"] for each in (cached, again)] == [alone["logprobs"]] * 2


@pytest.mark.parametrize(("model", "reproducible"), [("base", True), ("states", False)])
def test_a_second_decision_about_a_known_image_may_ask_more_than_the_first(
    eyes: RawClient, model: str, reproducible: bool
) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "see "}, picture(10), {"type": "text", "text": "!"}]}]
    so = {"type": "predicate", "instructions": "Is it green?"}
    levels = [{"label": "dark"}, {"label": "bright"}]
    asked = {"model": model, "state": said, "reproducible": reproducible}
    eyes.result("decide", {**asked, "questions": [so]})
    lost = restarts(eyes)
    questions = [so, {"type": "score", "instructions": "How bright is it?", "levels": levels}]
    known = eyes.result("decide", {**asked, "questions": questions})
    new = eyes.result("decide", {**asked, "questions": questions, "cache_salt": "nobody's"})
    for one, other in zip(known["answers"], new["answers"], strict=True):
        assert one["mass"] == pytest.approx(other["mass"], abs=ROUNDING)
        assert one.get("probabilities", []) == pytest.approx(other.get("probabilities", []), abs=ROUNDING)
    assert restarts(eyes) == lost


def test_several_images_and_several_requests_at_once_are_answered_as_each_alone(eyes: RawClient) -> None:
    wanted = [asked(picture(shade), "and", picture(255 - shade), cache_prompt=False) for shade in (5, 90, 200)]
    alone = [Thought(eyes.result("infer", params)) for params in wanted]
    assert len(set(map(str, alone))) == 3
    requests = [eyes.send("infer", params) for params in wanted * 2]
    assert [Thought(eyes.response(request)["result"]) for request in requests] == alone * 2


def test_several_answers_to_an_image_are_those_that_their_seeds_give_alone(eyes: RawClient) -> None:
    params = asked("what is ", picture(61), " here?", temperature=1.5)
    several = eyes.result("infer", params | {"n": 4, "seed": 5})
    alone = [eyes.result("infer", params | {"seed": 5 + index}) for index in range(4)]
    assert [each["text"] for each in several["answers"]] == [each["text"] for each in alone]
    assert several["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert several["usage"]["completion_tokens"] == sum(each["usage"]["completion_tokens"] for each in alone)
    assert len({each["text"] for each in alone}) > 1


def test_a_text_goes_on_while_an_image_is_encoded(eyes: RawClient) -> None:
    text = eyes.send("infer", {"messages": conversation("words alone"), "max_tokens": 40, "ignore_eos": True})
    image = eyes.send("infer", asked(picture(33), "seen?"))
    assert eyes.response(text)["result"]["usage"]["completion_tokens"] == 40
    assert "result" in eyes.response(image)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("!!!", "base64"),
        (base64.b64encode(b"not an image").decode(), ""),
        (base64.b64encode(png(56, 56)[:60]).decode(), ""),
    ],
)
def test_what_is_no_image_is_refused_by_name(eyes: RawClient, data: str, why: str) -> None:
    error = eyes.call("infer", asked({"type": "image", "data": data}, "what?"))["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "messages")
    assert why in error["data"]["why"]


def test_an_image_that_does_not_fit_the_context_is_refused(eyes: RawClient) -> None:
    error = eyes.call("infer", asked(*[picture(shade) for shade in range(40)]))["error"]
    assert (error["code"], error["data"]["context_tokens"]) == (1006, 512)
    assert error["data"]["prompt_tokens"] > 512


def test_a_model_that_cannot_see_says_so(client: RawClient) -> None:
    error = client.call("infer", asked(picture(1), "what?"))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "images")


@pytest.mark.parametrize("format", ["JPEG", "GIF"])
def test_an_image_that_breaks_off_is_refused_with_the_reason(eyes: RawClient, format: str) -> None:
    file = BytesIO()
    Image.effect_noise((56, 56), 99).save(file, format)
    data = base64.b64encode(file.getvalue()[:-500]).decode()
    error = eyes.call("infer", asked({"type": "image", "data": data}, "what?"))["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "messages")
    assert error["data"]["why"] == "the image is damaged or truncated"


def test_without_pillow_the_model_takes_no_images_and_the_refusal_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "PIL.py").write_text("raise ImportError")
    with daemon_with_projector(PYTHONPATH=str(tmp_path)) as daemon, daemon.connect() as client:
        assert "result" in client.call("infer", {"prompt": "a", "max_tokens": 1})
        (model,) = [each for each in client.result("models/list")["models"] if each["name"] == "base"]
        assert model["can"] == ["generate", "chat", "decide", "embed"]
        error = client.call("infer", asked(picture(1), "what?"))["error"]
        assert (error["code"], error["data"]["lacks"]) == (1004, "images")
        assert "card-daemon[images]" in error["data"]["why"]
        assert "images.pillow_missing" in daemon.log.read_text()


def test_the_model_says_that_it_sees(eyes: RawClient) -> None:
    (model,) = [each for each in eyes.result("models/list")["models"] if each["name"] == "base"]
    assert "images" in model["can"]


def test_an_image_survives_the_death_of_its_engine(seeing: Daemon, eyes: RawClient) -> None:
    params = asked(picture(123), "still there?", cache_prompt=False)
    before = Thought(eyes.result("infer", params))
    seeing.engine().kill()
    assert Thought(eyes.result("infer", params)) == before


@pytest.mark.slow
def test_a_text_is_not_kept_waiting_by_requests_whose_images_are_being_encoded(eyes: RawClient) -> None:
    seen = [asked(picture(shade, (2000, 2000)), "seen?", cache_prompt=False) for shade in range(8)]
    images = [eyes.send("infer", each) for each in seen]
    text = eyes.send("infer", {"messages": conversation("words alone"), "max_tokens": 4, "ignore_eos": True})
    answers = [eyes.receive() for _ in range(9)]
    assert all("result" in answer for answer in answers)
    # By order of arrival it would be the last: eight images for three sequences.
    assert [answer["id"] for answer in answers].index(text) < len(images) / 2


@pytest.mark.slow
def test_a_persons_image_is_answered_among_the_first_of_another_persons_flood(eyes: RawClient) -> None:
    images = [picture(shade, (1000, 1000)) for shade in range(49)]
    seen = [asked(image, "seen?", cache_prompt=False, person="ada") for image in images[1:]]
    last = asked(images[0], "seen?", cache_prompt=False, person="bob")
    flood, own = [eyes.send("infer", each) for each in seen], eyes.send("infer", last)
    answers = [eyes.receive() for _ in range(49)]
    assert all("result" in answer for answer in answers)
    # By order of arrival it would be the last.
    assert [answer["id"] for answer in answers].index(own) < len(flood) / 4


@pytest.mark.slow
def test_requests_whose_images_another_replica_encodes_again_are_answered_as_each_alone() -> None:
    with daemon_with_projector("sequences = 1\nreplicas = 2") as daemon, daemon.connect() as client:
        client.result("infer", asked("ready?"))
        seen = [asked(picture(shade, (2000, 2000)), "seen?", cache_prompt=False) for shade in range(6)]
        alone = [Thought(client.result("infer", each)) for each in seen]
        keys = [client.send("infer", each) for each in seen]
        texts = [client.send("infer", asked(f"text {number}")) for number in range(6)]
        first = client.receive()
        daemon.engine().kill()
        answers = [first, *(client.receive() for _ in range(11))]
        assert {answer["id"] for answer in answers} == {*keys, *texts}
        by_id = {answer["id"]: answer["result"] for answer in answers}
        assert [Thought(by_id[key]) for key in keys] == alone
