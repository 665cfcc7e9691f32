"""`POST /v1/decisions`: OpenAI's decisions, and what both endpoints of decisions have in common."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from car_client.errors import ProtocolError
from car_http.dialects.bodies import Part
from car_http.dialects.common import OWN_HEADERS, Caller, as_sent, caller_params, given, own_params, packed, same_named
from car_http.dialects.responses.requests import Item, conversation, json_value
from car_http.problems import bad
from car_protocol.decide import MAX_NAME_BYTES, ChoiceAnswer, Decision, PredicateAnswer, QuestionAnswer, shown
from car_protocol.infer import Lora, Milliseconds, Priority
from car_protocol.meta import note

_ORDERS = "X-Card-Orders"  # no other request has this member of card's own


class OwnDecision(Struct, kw_only=True, forbid_unknown_fields=True):
    """Members of card's own, as `decide` has them."""

    wait: bool | None = None
    queue: bool | None = None
    device: str | None = None
    priority: Priority | None = None
    session: str | None = None
    timeout_ms: Milliseconds | None = None
    queue_timeout_ms: Milliseconds | None = None
    lora: list[Lora] | None = None
    client: str | None = None
    reproducible: bool | None = None
    orders: Annotated[Annotated[int, Meta(ge=1, le=2)] | None, note("2: a choice is read in both orders")] = None


class Option(Struct):
    """One of the values of a choice."""

    value: str | bool
    description: Any = None


class Level(Struct):
    """One step of a score."""

    label: str
    description: Any = None


class Predicate(Struct, tag="predicate", kw_only=True):
    """Is it so?"""

    instructions: str | list[Part]
    name: str | None = None


class Choice(Struct, tag="choice", kw_only=True):
    """Which of these values is it?"""

    instructions: str | list[Part]
    choices: list[Option]
    name: str | None = None


class Score(Struct, tag="score", kw_only=True):
    """How much is it?"""

    instructions: str | list[Part]
    levels: list[Level]
    name: str | None = None


Question = Predicate | Choice | Score


class DecisionsRequest(Struct, kw_only=True):
    """The body; members that it does not name are dropped."""

    input: str | list[Item]
    questions: list[Question]
    model: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    card: OwnDecision | None = None


# A question's name, and its options or levels; a predicate has none.
Labelled = tuple[str | None, Sequence[Any]]
_SIDES = 2  # of a predicate


class DecideJob(Struct, frozen=True):
    """Params of `decide`, and how its answers are written."""

    params: dict[str, Any]
    whole: Callable[[Decision], dict[str, Any]]
    named: Callable[[str], str]  # a param of `decide` as the request names it
    media: str  # the member that has the images and sounds


def read(request: DecisionsRequest, caller: Caller) -> DecideJob:
    """Translate a request; raises Problem."""
    state = request.input if isinstance(request.input, str) else _conversation(request.input)
    names = _names(request.questions)
    asked = [
        _asked(question, f"questions[{place}]") | given(name=name)
        for place, (question, name) in enumerate(zip(request.questions, names, strict=True))
    ]
    params = given(state=state, questions=asked, model=request.model or None)
    params |= caller_params(caller, user=request.safety_identifier, session=request.prompt_cache_key, stream=False)
    labels = [(question.name, _labels(question)) for question in request.questions]
    return DecideJob(
        packed(params | own_decision(caller, request.card)),
        partial(_object, labels),
        partial(_named, own_names(request, caller) | _described(request.questions)),
        "input",
    )


def own_decision(caller: Caller, body: OwnDecision | None) -> dict[str, Any]:
    """Return the members of card's own, of the headers and of the body; raises Problem."""
    params = own_params(caller, None)
    # Members that an answer in text has, and a decision has not.
    for name, header in OWN_HEADERS.items():
        if name in params and name not in OwnDecision.__struct_fields__:
            raise bad(header, "a decision has no such member: leave it out")
    if (orders := caller.header(_ORDERS)) is not None:
        if orders not in ("1", "2"):
            raise bad(_ORDERS, "give 1 or 2")
        params["orders"] = int(orders)
    return params | (same_named(body, OwnDecision.__struct_fields__) if body else {})


def own_names(request: Struct, caller: Caller) -> dict[str, str]:
    """Return the members of card's own that a request has, each as it was sent, for errors."""
    return as_sent(request, {name: (f"card.{name}",) for name in OwnDecision.__struct_fields__}, caller)


def paired(labels: Sequence[Labelled], found: Decision) -> Iterator[tuple[Labelled, QuestionAnswer]]:
    """Yield each question with its answer; raises ProtocolError for answers to other questions."""
    if len(found.answers) != len(labels):
        raise ProtocolError(f"the daemon sent {len(found.answers)} answers to {len(labels)} questions")
    for question, answer in zip(labels, found.answers, strict=True):
        if len(answer.probabilities) != (len(question[1]) or _SIDES):
            raise ProtocolError("the daemon sent probabilities of another question")
        yield question, answer


def _conversation(items: list[Item]) -> list[dict[str, Any]]:
    """Return the turns of items; raises Problem for an output without the call before it."""
    called: set[str | None] = set()
    for number, item in enumerate(items):
        if item.type in ("function_call", "custom_tool_call"):
            called.add(item.call_id)
        elif item.type in ("function_call_output", "custom_tool_call_output") and item.call_id not in called:
            raise bad(f"input[{number}].call_id", "no item before it is this call: send the call too")
    return conversation(items, "input")


def _names(questions: Sequence[Question]) -> list[str | None]:
    """Return the names that questions have for `decide`, which a model may see: of names that it refuses, none."""
    names = [each.name for each in questions]
    taken = Counter((*names, *map(str, range(len(questions)))))
    return [name if name and taken[name] == 1 and len(name.encode()) <= MAX_NAME_BYTES else None for name in names]


def _described(questions: Sequence[Question]) -> dict[str, str]:
    """Return the params of `decide` for levels with a description: a label of its own is a text, and has no fault."""
    return {
        f"questions[{place}].levels[{number}].label": f"questions[{place}].levels[{number}].description"
        for place, question in enumerate(questions)
        if isinstance(question, Score)
        for number, level in enumerate(question.levels)
        if level.description is not None
    }


def _named(own: Mapping[str, str], param: str) -> str:
    """Return a param of `decide` as the request names it; `own` has the names of its members that differ."""
    if param.startswith("state"):
        return "input" + param.removeprefix("state")
    return own.get(param) or param.replace(".options", ".choices")


def _asked(question: Question, place: str) -> dict[str, Any]:
    params: dict[str, Any] = {
        "type": question.__struct_config__.tag,
        "instructions": _instructions(question.instructions, f"{place}.instructions"),
    }
    match question:
        case Predicate() if params["instructions"] in ("", {}, []):
            # `decide` would ask for its sides, which OpenAI's predicates have not.
            raise bad(f"{place}.instructions", "is empty: ask something")
        case Choice(choices=choices):
            params["options"] = [given(value=each.value, description=each.description) for each in choices]
        case Score(levels=levels):
            params["levels"] = [{"label": _level(each)} for each in levels]
    return params


def _instructions(content: str | list[Part], place: str) -> Any:
    """Return instructions as a text, or as the JSON value that is their only part."""
    if isinstance(content, str):
        return content
    values = [_asked_part(part, f"{place}[{number}]") for number, part in enumerate(content)]
    return values[0] if len(values) == 1 else "".join(map(shown, values))


def _asked_part(part: Part, place: str) -> Any:
    if part.type == "input_json":
        return json_value(part, place)
    if part.type != "input_text":
        raise bad(place, "a question is text and JSON: put images and sounds into `input`")
    if part.text is None:
        raise bad(f"{place}.text", "give a text")
    return part.text


def _level(level: Level) -> Any:
    return level.label if level.description is None else {"label": level.label, "description": level.description}


def _labels(question: Question) -> list[str | bool]:
    match question:
        case Choice(choices=choices):
            return [each.value for each in choices]
        case Score(levels=levels):
            return [each.label for each in levels]
    return []


def _object(labels: Sequence[Labelled], found: Decision) -> dict[str, Any]:
    usage = found.usage
    return {
        "model": found.model,
        "answers": [
            {"name": name} | _answered(answer, of_question) for (name, of_question), answer in paired(labels, found)
        ],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.answer_tokens,
        },
    }


def _answered(answer: QuestionAnswer, labels: Sequence[str | bool]) -> dict[str, Any]:
    if isinstance(answer, PredicateAnswer):
        return {"type": "predicate", "probability": answer.probability, "mass": answer.mass}
    if isinstance(answer, ChoiceAnswer):
        options = [
            {"value": value, "probability": probability}
            for value, probability in zip(labels, answer.probabilities, strict=True)
        ]
        return {
            "type": "choice",
            "choice": answer.choice,
            "probabilities": options,
            "confidence": answer.confidence,
            "mass": answer.mass,
        }
    levels = [
        {"value": value, "label": label, "probability": probability}
        for value, (label, probability) in enumerate(zip(labels, answer.probabilities, strict=True))
    ]
    return {
        "type": "score",
        "score": answer.score,
        "probabilities": levels,
        "confidence": answer.confidence,
        "mass": answer.mass,
    }
