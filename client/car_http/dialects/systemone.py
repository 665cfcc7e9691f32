"""`POST /v1/systemone`: decisions as TypeSafe's clients and llama-server have them."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from msgspec import Struct

from car_http.dialects.common import Caller, caller_params, converted, given, image_data, packed
from car_http.dialects.decisions import DecideJob, Labelled, OwnDecision, own_decision, own_names, paired
from car_http.dialects.errors import beneath
from car_http.problems import bad
from car_protocol.decide import ChoiceAnswer, Decision, PredicateAnswer, QuestionAnswer, is_message, shown
from car_protocol.limits import MAX_FRAME_BYTES, MAX_IMAGES
from car_protocol.meta import note

_TEXT_OR_JSON = "a text, or a JSON value, which is shown as JSON"
_STATE = "state"
# The members of a message that say something about it.
_TURN = ("role", "content", "name", "tool_calls", "tool_call_id")
_QUESTION = re.compile(r"questions\[(\d+)\](.*)", re.DOTALL)
_MEMBERS = {"options": "criteria", "levels": "criteria", "true": "criteria.true", "false": "criteria.false"}


class Asset(Struct, kw_only=True):
    """An image, by its base64 or by the part of the form that holds it."""

    type: Annotated[str | None, note("image")] = None
    format: str | None = None
    data_base64: str | None = None
    part: str | None = None


class Sides(Struct, forbid_unknown_fields=True):
    """What yes and no mean."""

    true: Annotated[Any, note(_TEXT_OR_JSON)] = None
    false: Annotated[Any, note(_TEXT_OR_JSON)] = None


class Noul(Struct, tag="noul"):
    """A question with yes or no as its answer."""

    instructions: Annotated[Any, note(_TEXT_OR_JSON)] = None
    criteria: Sides | None = None


class Choice(Struct, tag="choice"):
    """A question with one of the criteria as its answer."""

    criteria: Annotated[dict[str, Any], note("the options with their descriptions, which may be null")]
    instructions: Annotated[Any, note(_TEXT_OR_JSON)] = None


class Score(Struct, tag="score"):
    """A question with a level as its answer."""

    criteria: Annotated[list[Any], note("the levels, the lowest first")]
    instructions: Annotated[Any, note(_TEXT_OR_JSON)] = None


Question = Noul | Choice | Score


class SystemOneRequest(Struct, kw_only=True):
    """The body; members that it does not name are dropped."""

    state: Annotated[Any, note("a text, messages, `{messages: [...]}`, or another JSON value, which is shown as JSON")]
    questions: Annotated[dict[str, Any], note("by name, of the type noul, choice or score")]
    model: str | None = None
    images: Annotated[list[str] | None, note("data URLs")] = None
    assets: Annotated[dict[str, Any] | None, note("images by the placeholder that stands for them in `state`")] = None
    card: OwnDecision | None = None


def read(request: SystemOneRequest, caller: Caller, parts: Mapping[str, bytes]) -> DecideJob:
    """Translate a request, whose form has `parts` beside it; raises Problem."""
    questions = {name: _question(name, each) for name, each in request.questions.items()}
    asked = [_asked(name, question) for name, question in questions.items()]
    if len(request.assets or {}) > MAX_IMAGES:
        raise bad("assets", f"there are more than {MAX_IMAGES} images: send fewer")
    if "" in (request.assets or {}):
        raise bad(beneath("assets", ""), "an empty placeholder stands nowhere: give it a name")
    assets = {name: converted(each, Asset, beneath("assets", name)) for name, each in (request.assets or {}).items()}
    state = _state(request, _images(assets, parts))
    _refuse_images(request)
    params = {"state": state} | given(questions=asked, model=request.model or None)
    params |= caller_params(caller, user=None, session=None, stream=False)
    labels = [(name, _labels(question)) for name, question in questions.items()]
    turns_at = _turns_at(request.state)
    media = "images" if request.images else "assets" if request.assets else turns_at
    # Beside images a state is never empty: what the daemon refuses of it as a whole is an image.
    own = own_names(request, caller) | ({} if media == turns_at else {_STATE: media})
    named = partial(_named, labels, own, turns_at)
    return DecideJob(packed(params | own_decision(caller, request.card)), partial(_object, labels), named, media)


def _question(name: str, asked: Any) -> Any:
    # A box is a place in an image, which no model here can name.
    if isinstance(asked, dict) and asked.get("type") == "box":
        raise bad(f"{beneath('questions', name)}.type", "boxes are not offered: ask for a choice, a score or a noul")
    return converted(asked, Question, beneath("questions", name))


def _asked(name: str, question: Question) -> dict[str, Any]:
    about = given(name=name, instructions=question.instructions)
    match question:
        case Noul(criteria=sides):
            return {"type": "predicate"} | about | (given(true=sides.true, false=sides.false) if sides else {})
        case Choice(criteria=criteria):
            options = [given(value=value, description=described) for value, described in criteria.items()]
            return {"type": "choice", "options": options} | about
        case Score(criteria=levels):
            if None in levels:
                raise bad(
                    f"{beneath('questions', name)}.criteria[{levels.index(None)}]", "a level is null: describe it"
                )
            return {"type": "score", "levels": [{"label": level} for level in levels]} | about


def _labels(question: Question) -> list[Any]:
    return list(question.criteria) if isinstance(question, Choice | Score) else []


def _named(asked: Sequence[tuple[str, list[Any]]], own: Mapping[str, str], turns_at: str, param: str) -> str:
    """Return a param of `decide` as the request names it; `own` has the names of card's own members."""
    found = _QUESTION.fullmatch(param)
    if found is None:
        return turns_at + param.removeprefix(_STATE) if param.startswith(f"{_STATE}[") else own.get(param, param)
    member, dot, rest = found[2].removeprefix(".").partition(".")
    head, bracket, index = member.partition("[")
    name, labels = asked[int(found[1])]
    if bracket and head in _MEMBERS:
        dot = rest = ""  # what stands there is the value or the level itself
    path = "".join((_MEMBERS.get(head, head), bracket, index, dot, rest))
    if bracket and head == "options":
        path = beneath("criteria", labels[int(index.removesuffix("]"))])
    return ".".join(filter(None, (beneath("questions", name), path)))


def _images(assets: Mapping[str, Asset], parts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the base64 of each asset; raises Problem for an asset without an image, and an image without an asset."""
    found = {}
    if left := parts.keys() - {asset.part for asset in assets.values()}:
        raise bad("assets", f"no asset has the part `{min(left)}` of the form: name it as the `part` of one")
    for name, asset in assets.items():
        if asset.type not in (None, "image"):
            raise bad(f"{beneath('assets', name)}.type", "an asset is an image")
        if asset.part is not None:
            if asset.part not in parts:
                raise bad(f"{beneath('assets', name)}.part", "the form has no part of this name")
            found[name] = base64.b64encode(parts[asset.part]).decode()
        elif asset.data_base64 is not None:
            found[name] = asset.data_base64
        else:
            raise bad(beneath("assets", name), "give `data_base64`, or `part` in a multipart form")
    return found


def _turns_at(state: Any) -> str:
    """Return the member that has the turns of a state."""
    if isinstance(state, dict) and list(state) == ["messages"] and isinstance(state["messages"], list):
        return f"{_STATE}.messages"
    return _STATE


def _state(request: SystemOneRequest, assets: Mapping[str, str]) -> Any:
    """Return the state as `decide` takes it: images are parts of messages; raises Problem."""
    state = request.state
    images = [_image(image_data(url, f"images[{place}]")) for place, url in enumerate(request.images or [])]
    where = _turns_at(state)
    turns = state if where == _STATE else state["messages"]
    if isinstance(turns, list) and turns and all(map(is_message, turns)):
        messages = [_message(each, f"{where}[{place}]") for place, each in enumerate(turns)]
    elif images or assets:
        messages = [{"role": "user", "content": [{"type": "text", "text": shown(state)}]}]
    else:
        return state if turns else turns  # no messages are an empty state, also in an object
    if images:
        messages[0]["content"] = [*images, *_parts(messages[0].get("content"))]
    return _placed(messages, assets)


def _message(message: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a message of chat completions with its images first, as the daemon has it.

    Other members, and members without a value, are left out: an answer of OpenAI's comes with `refusal`, a call of a
    stream with `index`.
    """
    message = _only(_TURN, message)
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_call(call) for call in calls]
    if not message.keys() & {"content", "tool_calls"}:
        message["content"] = ""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise bad(f"{place}.content", "Expected `str | array | null`")
    parts = [_part(part, f"{place}.content[{number}]") for number, part in enumerate(content)]
    return message | {"content": sorted(parts, key=lambda part: part["type"] != "image")}


def _only(members: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    return {name: value[name] for name in members if value.get(name) not in (None, [])}


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    own = {"function": _only(("name", "arguments"), function)} if isinstance(function, dict) else {}
    return _only(("id", "type", "function"), call) | own


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else part.get("image_url")
        if isinstance(url, str):
            return _image(image_data(url, f"{place}.image_url"))
    raise bad(place, "a part is {type: text, text} or {type: image_url, image_url: {url: a data URL}}")


def _image(data: str) -> dict[str, Any]:
    return {"type": "image", "data": data}


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _placed(messages: list[dict[str, Any]], assets: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return messages with images in place of their placeholders; raises Problem for an asset without a place."""
    if not assets:
        return messages
    used: set[str] = set()
    images: list[str] = []

    def split(text: str) -> Iterator[dict[str, Any]]:
        start = 0
        places = {name: text.find(name) for name in assets}
        while found := [(place, -len(name), name) for name, place in places.items() if place >= 0]:
            place, _, name = min(found)
            used.add(name)
            if place > start:
                yield {"type": "text", "text": text[start:place]}
            images.append(assets[name])
            # Before they are copied: a short placeholder could stand there a million times.
            if len(images) > MAX_IMAGES or sum(map(len, images)) > MAX_FRAME_BYTES:
                most = f"{MAX_IMAGES} images or {MAX_FRAME_BYTES:,} bytes"
                raise bad(beneath("assets", name), f"the placeholders in `state` are more than {most}: use each once")
            yield _image(assets[name])
            start = place + len(name)
            places = {each: text.find(each, start) if 0 <= at < start else at for each, at in places.items()}
        if start < len(text):
            yield {"type": "text", "text": text[start:]}

    placed = [
        message
        | {
            "content": [
                piece
                for part in _parts(message.get("content"))
                for piece in (split(part["text"]) if part["type"] == "text" else [part])
            ]
        }
        for message in messages
    ]
    if unused := assets.keys() - used:
        raise bad(
            beneath("assets", min(unused)), "its placeholder stands nowhere in `state`: put it there, or leave it out"
        )
    return placed


# Characters of a placeholder in an error: a line has room for more.
_MOST_SHOWN = 64


def _refuse_images(request: SystemOneRequest) -> None:
    """Raise Problem for a placeholder in a question: images belong to the state."""
    for name, question in request.questions.items():
        texts = list(_texts([value for member, value in question.items() if member != "type"]))
        found = next((asset for asset in request.assets or {} for text in texts if asset in text), None)
        if found is not None:
            why = f"has the placeholder {found[:_MOST_SHOWN]!r}: images stand in `state`; rename it if it is a word"
            raise bad(beneath("questions", name), why)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a JSON value; the names of its members do not count."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _object(labels: Sequence[Labelled], found: Decision) -> dict[str, Any]:
    return {
        "model": found.model,
        "answers": {name: _answered(answer, of_question) for (name, of_question), answer in paired(labels, found)},
        "usage": {"input_tokens": found.usage.prompt_tokens, "output_tokens": found.usage.answer_tokens},
        "x_card": {"cached_tokens": found.usage.cached_tokens, "timings": found.timings},
    }


def _answered(answer: QuestionAnswer, labels: Sequence[Any]) -> dict[str, Any]:
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": answer.probability, "x_mass": answer.mass}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "probabilities": dict(zip(labels, answer.probabilities, strict=True)),
            "confidence": answer.confidence,
            "x_mass": answer.mass,
        }
    numbers = [str(place) for place in range(len(labels))]
    return {
        "type": "score",
        "score": answer.score,
        "legend": dict(zip(numbers, labels, strict=True)),
        "probabilities": dict(zip(numbers, answer.probabilities, strict=True)),
        "confidence": answer.confidence,
        "x_mass": answer.mass,
    }
