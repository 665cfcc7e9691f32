"""`decide`: typed questions about one state, answered by probabilities."""

import json
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from car_protocol.conversation import Message, Messages, check_exact
from car_protocol.infer import MAX_SESSION_BYTES, GenerationOptions, Lora, Milliseconds, Priority
from car_protocol.meta import Label, Params, Tenant, check_bytes, check_origin, note
from car_protocol.params import message_of, reason_of

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_NAME_BYTES = 256
_TEXT_OR_JSON = "a text, or any JSON value"
# Instructions, or a side of a predicate, that say nothing.
EMPTY: tuple[object, ...] = (None, "", [], {})
# The members by which an item of a state is a message.
_SAYS = ("content", "tool_calls")


class Option(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the values of a choice."""

    value: Annotated[str | bool, note('unique in its question; `"true"` and `true` are two')]
    description: Annotated[Any, note(_TEXT_OR_JSON)] = None


class Level(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a score."""

    label: Annotated[Any, note(_TEXT_OR_JSON)]


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="choice", tag_field="type"):
    """Which of these values is it?"""

    name: Annotated[str | None, note("unique in the request; the question's index if absent")] = None
    instructions: Annotated[Any, note(_TEXT_OR_JSON)]
    options: Annotated[list[Option], Meta(extra_json_schema={"minItems": 2, "maxItems": MAX_OPTIONS})]


class Score(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="score", tag_field="type"):
    """How much is it, on a scale of these levels?"""

    name: Annotated[str | None, note("unique in the request; the question's index if absent")] = None
    instructions: Annotated[Any, note(_TEXT_OR_JSON)]
    levels: Annotated[
        list[Level], Meta(description="the lowest first", extra_json_schema={"minItems": 2, "maxItems": MAX_LEVELS})
    ]


class Predicate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="predicate", tag_field="type"):
    """Is it so?"""

    name: Annotated[str | None, note("unique in the request; the question's index if absent")] = None
    instructions: Annotated[Any, note(f"{_TEXT_OR_JSON}; may be absent if a side is described")] = None
    true: Annotated[Any, note("what it means that it is so")] = None
    false: Annotated[Any, note("what it means that it is not so")] = None


Question = Choice | Score | Predicate


def type_of(question: Question) -> str:
    """Return the name of a question's type."""
    return str(question.__struct_config__.tag)


def shown(value: Any) -> str:
    """Return a text or JSON value as a model is shown it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class DecisionPrompt(Params, frozen=True, kw_only=True):
    """A state and the questions about it, with all that an engine needs to prepare them."""

    state: Annotated[
        Any,
        note(
            "what the questions are about: a text, messages as `infer` takes them (images and sounds too), or any "
            "other JSON value, shown as JSON with its keys in their order; not empty"
        ),
    ]
    questions: Annotated[list[Question], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_QUESTIONS})]
    orders: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | None,
        note(
            "2: a choice is read forwards and backwards, and both are averaged, which cancels a preference for the "
            "first option and costs a second reading; as the model's family does it if absent, else 1"
        ),
    ] = None
    reproducible: Annotated[
        bool, note("the same question gives the same numbers to the last bit, whatever else the daemon does, at a cost")
    ] = False
    lora: Annotated[list[Lora], Meta(max_length=8, description="as in `infer`")] = field(default_factory=list)
    priority: Annotated[Priority, note("as in `infer`")] = "latency_critical"

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """The adapters that change something, as a generation has them."""
        return GenerationOptions(lora=self.lora).adapters

    @property
    def names(self) -> list[str]:
        """The names of the questions, in their order."""
        return [str(index) if each.name is None else each.name for index, each in enumerate(self.questions)]

    @property
    def messages(self) -> list[Message] | None:
        """The state as messages; None if it is a text or another JSON value. Raises ValueError with a path."""
        state = self.state
        if not isinstance(state, list) or not state or not all(map(is_message, state)):
            return None
        try:
            return msgspec.convert(state, Messages)
        except msgspec.ValidationError as error:
            message = message_of(error)
            place = message.rpartition(" - at `$")[2].rstrip("`")
            why = reason_of(message, Message, place.partition(".")[2])
            raise ValueError(
                f"`state{place}`: is no message: {why}; to show the list as JSON, put it into an object"
            ) from None


class DecideParams(DecisionPrompt, frozen=True, kw_only=True):
    """A state, and the questions about it; errors name the path of the member at fault."""

    names_paths: ClassVar[bool] = True

    model: Annotated[str | None, note("a name of `models/list`; the default model if absent")] = None
    timeout_ms: Annotated[Milliseconds | None, note("deadline of all answers in ms, from arrival: 1002")] = None
    queue_timeout_ms: Annotated[Milliseconds | None, note("as in `infer`")] = None
    wait: Annotated[bool, note("as in `infer`")] = True
    queue: Annotated[bool, note("as in `infer`")] = True
    session: Annotated[str | None, note("as in `infer`")] = None
    cache_salt: Annotated[str | None, note("as in `infer`")] = None
    device: Annotated[Annotated[str, Meta(max_length=64)] | None, note("as in `infer`")] = None
    progress: Annotated[bool, note("send `infer_stream/progress` notifications with the number of questions done")] = (
        False
    )
    client: Label = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        self._check_state()
        if not self.questions:
            raise ValueError("`questions`: has 0 questions, at least 1 is needed: add one")
        if len(self.questions) > MAX_QUESTIONS:
            raise ValueError(
                f"`questions`: has {len(self.questions):,} questions, at most {MAX_QUESTIONS} are allowed: send the "
                "others in a second request, which finds the state in the cache"
            )
        names: dict[str, int] = {}
        for index, name in enumerate(self.names):
            if (first := names.setdefault(name, index)) != index:
                raise ValueError(f"`questions[{index}].name`: is the name of questions[{first}] too: give each its own")
        for index, question in enumerate(self.questions):
            _check(f"questions[{index}]", question)
        if len({each.name for each in self.lora}) < len(self.lora):
            raise ValueError("`lora`: an adapter is named twice")
        check_bytes("session", self.session, MAX_SESSION_BYTES)
        check_bytes("cache_salt", self.cache_salt, MAX_SESSION_BYTES)
        check_origin(self.client, self.tenant)

    @property
    def prompt(self) -> DecisionPrompt:
        """The part that an engine needs."""
        members = (name for name in DecisionPrompt.__struct_fields__ if name not in Params.__struct_fields__)
        return DecisionPrompt(**{name: getattr(self, name) for name in members})

    def _check_state(self) -> None:
        if self.state is None or (isinstance(self.state, str | list | dict) and not self.state):
            raise ValueError("`state`: is empty: give what the questions are about")
        check_exact("state", self.state)
        messages = self.messages
        if messages is not None and not any(each.text or each.media or each.tool_calls for each in messages):
            raise ValueError("`state`: its messages are empty: give what the questions are about")


def is_message(item: object) -> bool:
    """Return whether an item of a state is meant as a message; any other makes the state a JSON value."""
    return isinstance(item, dict) and isinstance(item.get("role"), str) and any(name in item for name in _SAYS)


def _check(path: str, question: Question) -> None:
    """Raise ValueError for a question out of bounds."""
    check_bytes(f"{path}.name", question.name, MAX_NAME_BYTES)
    check_exact(f"{path}.instructions", question.instructions)
    match question:
        case Choice(options=options):
            _check_count(f"{path}.options", len(options), "options", MAX_OPTIONS, "ask in two steps, by group first")
            seen: dict[tuple[type, str | bool], int] = {}
            for index, option in enumerate(options):
                if (first := seen.setdefault((type(option.value), option.value), index)) != index:
                    raise ValueError(
                        f"`{path}.options[{index}].value`: is the value of option {first} too: leave one out"
                    )
                check_exact(f"{path}.options[{index}].description", option.description)
        case Score(levels=levels):
            _check_count(f"{path}.levels", len(levels), "levels", MAX_LEVELS, "merge neighbours")
            for index, level in enumerate(levels):
                if level.label is None:
                    raise ValueError(f"`{path}.levels[{index}].label`: is null: describe the level")
                check_exact(f"{path}.levels[{index}].label", level.label)
        case Predicate(true=true, false=false):
            if all(each in EMPTY for each in (question.instructions, true, false)):
                raise ValueError(f"`{path}.instructions`: is empty: ask something, or describe `true` or `false`")
            check_exact(f"{path}.true", true)
            check_exact(f"{path}.false", false)
            return
    if question.instructions is None:
        raise ValueError(f"`{path}.instructions`: is null: give a text or a JSON value")


def _check_count(path: str, count: int, what: str, most: int, remedy: str) -> None:
    if count < 2:
        raise ValueError(f"`{path}`: has {count} {what}, at least 2 are needed: add {what}, or leave the question out")
    if count > most:
        raise ValueError(f"`{path}`: has {count:,} {what}, at most {most} are allowed: {remedy}")


class ChoiceAnswer(Struct, frozen=True, kw_only=True, tag="choice", tag_field="type"):
    """The answer to a choice."""

    name: str
    choice: Annotated[str | bool, note("the value of the likeliest option")]
    probabilities: Annotated[list[float], note("of the options, in their order; their sum is 1")]
    confidence: Annotated[
        float,
        note(
            "0 if all N options are equally likely, 1 if an option is certain: (p - 1/N) / (1 - 1/N) of the likeliest"
        ),
    ]
    mass: Annotated[
        float,
        note(
            "the share of the whole vocabulary's probability that fell on the labels, before it was made to sum to 1: "
            "if it is small, the model did not understand the form"
        ),
    ]


class ScoreAnswer(Struct, frozen=True, kw_only=True, tag="score", tag_field="type"):
    """The answer to a score."""

    name: str
    score: Annotated[float, note("the mean of the levels' indices: 1.5 of 4 is between the second and the third")]
    probabilities: Annotated[list[float], note("of the levels, in their order; their sum is 1")]
    confidence: Annotated[float, note("1 if a level is certain, 0 if the answer is as spread as by chance")]
    mass: Annotated[float, note("as of a choice")]


class PredicateAnswer(Struct, frozen=True, kw_only=True, tag="predicate", tag_field="type"):
    """The answer to a predicate."""

    name: str
    probability: Annotated[float, note("that it is so")]
    probabilities: Annotated[list[float], note("that it is so, and that it is not; their sum is 1")]
    mass: Annotated[float, note("as of a choice")]


QuestionAnswer = ChoiceAnswer | ScoreAnswer | PredicateAnswer


class DecisionUsage(Struct, frozen=True):
    """Tokens of one decision: every question is read as the state and itself, and computed behind the others' state."""

    prompt_tokens: Annotated[int, note("of all questions, each with the state")]
    cached_tokens: Annotated[int, note("of them, not computed: the state after its first time, and what a cache had")]
    computed_tokens: Annotated[int, note("of them, computed")]
    answer_tokens: Annotated[Literal[0], note("nothing is written")] = 0


class DecisionTimings(Struct, frozen=True):
    """The parts of one decision's time, in milliseconds."""

    queue_ms: Annotated[float, note("from arrival to the lease")]
    compute_ms: Annotated[float, note("from the lease to the last answer, also while it was parked")]
    total_ms: Annotated[float, note("from arrival to the end")]


class Decision(Struct, frozen=True, kw_only=True):
    """The result of `decide`."""

    model: str
    answers: Annotated[list[QuestionAnswer], note("in the order of the questions")]
    usage: DecisionUsage
    timings: DecisionTimings
