"""Questions about one state as prompts: rendered one by one, and cut into their common prefix and tails."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from car_base.ipc.codec import packed_tokens
from car_base.ipc.frames import Chat, DecisionForm, ImageSlot, Prepared, PrepareDecision, QuestionForm, Tail
from car_base.ipc.refusal import Refusal
from car_engine.batching.sequences import GRID_TOKENS
from car_engine.prompt.conversation import Conversations, RenderedPrompt
from car_engine.prompt.decision_families import CHAT, NEED_HEADS, OWN_WORDS, RATINGS, DecisionFamily
from car_protocol.conversation import AudioPart, ImagePart, Message, TextPart
from car_protocol.decide import EMPTY, Choice, DecisionPrompt, Predicate, Question, Score, shown, type_of

# The words of decision templates for the types of questions.
_TYPES = {"choice": "choice", "score": "score", "predicate": "noul"}
_SYSTEM = (
    "You answer questions about what the user shows you. You write the label of the best answer, and nothing else."
)
_SIDES = "Which of these is so?"
_LAST = "Answer with the label only."


class DecisionWay(NamedTuple):
    """How a model decides: its family, and the temperature of its file for a type of question and a number of options.

    `why` is the reason of a model that cannot.
    """

    family: DecisionFamily | None
    temperature: Callable[[str, int], float | None] = lambda _type, _count: None
    why: str | None = None


def way_of(value: Callable[[str], str | None], *, own_words: bool, chats: bool) -> DecisionWay:
    """Return how a model decides; `value` returns a value of its architecture's metadata as text.

    A model has `own_words` if its file has a decision template, and `chats` if it has a chat template.
    """
    name = value("decision.type")
    if name is None:
        return DecisionWay(CHAT) if chats else DecisionWay(None, why="the model has no chat template to ask it with")
    if name in NEED_HEADS:
        return DecisionWay(
            None, why=f"models of the family {name} decide by heads on hidden states, which this engine lacks"
        )
    if name not in OWN_WORDS:
        return DecisionWay(None, why=f"the family {name[:64]} is not known: {', '.join(OWN_WORDS)} are")
    if not own_words:
        return DecisionWay(
            None, why=f"a model of the family {name} needs the chat template `systemone`, which its file lacks"
        )

    family = OWN_WORDS[name]

    def temperature(kind: str, count: int) -> float | None:
        key = f"decision.temperature.{_TYPES[kind]}"
        text = value(f"{key}.{family.bucket(count)}") or value(key)
        try:
            found = None if text is None else float(text)
        except ValueError:
            return None
        return None if found is None or not isfinite(found) else max(found, _LEAST_TEMPERATURE)

    return DecisionWay(family, temperature)


# Logits divided by less overflow; the choice is certain long before.
_LEAST_TEMPERATURE = 1e-3


class ShownOption(NamedTuple):
    """One option as a prompt shows it."""

    key: Any
    description: Any


class DecisionPreparer:
    """Prepares the decisions of one model, by the prompts of its chat template or of its decision template."""

    def __init__(self, way: DecisionWay, labels: Sequence[str], conversations: Conversations) -> None:
        self._way = way
        self._labels = labels
        self._conversations = conversations
        self._limit = conversations.limit

    def prepare(self, job: PrepareDecision) -> Generator[None, None, Prepared]:
        """Return the tokens of a decision, after a step for each prompt; raises Refusal that names the question."""
        family = self._way.family
        if family is None:
            raise Refusal("model_unavailable", lacks="decisions", why=self._way.why)
        params = job.params
        if family is not CHAT:
            _refuse_media(family, params)
        orders = params.orders or family.orders
        asked = [list(_readings(question, family, orders)) for question in params.questions]
        for index, readings in enumerate(asked):
            self._check_labels(index, params.questions[index], len(readings[0]))
        common, words = _Common(), None
        if family is not CHAT:
            words = _OwnWords(family, self._labels, params, asked, lists=self._conversations.reads("questions"))
        images: Sequence[ImageSlot] = ()
        longest = 0, 0  # the tokens of a prompt, and its question, negative: of equals the first is named
        for index, readings in enumerate(asked):
            for items in readings:
                question = params.questions[index]
                chat = (
                    _conversation(params, question, items, self._labels) if words is None else words.chat(index, items)
                )
                rendered = self._rendered(chat, index)
                common.add(rendered.tokens, reproducible=params.reproducible)
                images = images or rendered.images
                longest = max(longest, (len(rendered.tokens), -index))
                yield
        if longest[0] > self._limit.tokens:
            exceeded = self._limit.exceeded(longest[0], None)
            raise Refusal(exceeded.reason, **{**exceeded.data, "param": f"questions[{-longest[1]}]"})
        prefix, tails = common.cut()
        counts = [
            self._count(items, family, params.questions[index]) for index, all_ in enumerate(asked) for items in all_
        ]
        return Prepared(
            job.key,
            packed_tokens([*prefix, *(token for tail in tails for token in tail)]),
            1,
            images=list(images),
            owner=job.owner,
            names=job.names,
            decision=DecisionForm(
                len(prefix),
                [Tail(len(tail), count) for tail, count in zip(tails, counts, strict=True)],
                [self._form(job, family, *each) for each in zip(params.questions, asked, strict=True)],
            ),
        )

    def _form(
        self, job: PrepareDecision, family: DecisionFamily, question: Question, readings: list[list[ShownOption]]
    ) -> QuestionForm:
        kind = type_of(question)
        temperature = job.temperatures.get(kind) or self._way.temperature(kind, len(readings[0])) or 1.0
        predicate = isinstance(question, Predicate)
        return QuestionForm(
            len(readings),
            temperature,
            ratings=predicate and family.ratings,
            reverse=predicate and not family.true_first and not family.ratings,
        )

    def _count(self, items: list[ShownOption], family: DecisionFamily, question: Question) -> int:
        return RATINGS if family.ratings and isinstance(question, Predicate) else len(items)

    def _check_labels(self, index: int, question: Question, count: int) -> None:
        if count > len(self._labels):
            member = "levels" if isinstance(question, Score) else "options"
            why = f"has {count} {member}, and this model has {len(self._labels)} labels of one token: ask in two steps"
            raise Refusal("invalid_params", param=f"questions[{index}].{member}", why=why)

    def _rendered(self, chat: Chat, index: int) -> RenderedPrompt:
        try:
            return self._conversations.answered(chat) if chat.messages else self._conversations.prompt(chat, None)
        except Refusal as refusal:
            if refusal.reason == "context_exceeded":
                raise Refusal(refusal.reason, **{**refusal.data, "param": f"questions[{index}]"}) from None
            if refusal.reason == "invalid_params":
                raise Refusal("invalid_params", **{**refusal.data, "param": "state"}) from None
            raise


def _refuse_media(family: DecisionFamily, params: DecisionPrompt) -> None:
    """Raise Refusal for images and sounds: as JSON the model would be shown their base64."""
    for part in (part for message in params.messages or [] for part in message.media):
        kind = "images" if isinstance(part, ImagePart) else "audio"
        why = f"a model of the family {family.name} is asked in words alone: leave them out, or ask a chat model"
        raise Refusal("model_unavailable", lacks=kind, why=why)


class _Common:
    """Prompts: the first is kept whole, each other only from its first difference on."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._rest: list[tuple[int, list[int]]] = []  # of each prompt: its common tokens with the first, and the others
        self._most = 0
        self._step = 1

    def add(self, tokens: list[int], *, reproducible: bool) -> None:
        """Add the tokens of a prompt."""
        # A fixed cut, so that no other question decides where a reproducible question is cut.
        self._step = GRID_TOKENS if reproducible else 1
        if not self._rest:
            self._first, self._most = tokens, len(tokens) - 1
        same = next(
            (place for place, pair in enumerate(zip(self._first, tokens, strict=False)) if pair[0] != pair[1]),
            min(len(self._first), len(tokens)),
        )
        self._rest.append((same, tokens[same:]))
        # The last token of a prompt is always computed: its logits are read.
        self._most = min(self._most, same, len(tokens) - 1)

    def cut(self) -> tuple[list[int], list[list[int]]]:
        """Return the common prefix of all, and the tail of each."""
        end = self._most // self._step * self._step
        return self._first[:end], [[*self._first[end:same], *rest] for same, rest in self._rest]


def _readings(question: Question, family: DecisionFamily, orders: int) -> Iterator[list[ShownOption]]:
    """Yield the options of a question in each order in which they are read."""
    match question:
        case Choice():
            items = [ShownOption(_key(option.value), option.description) for option in question.options]
            yield items
            if orders > 1:
                yield items[::-1]
        case Score():
            yield [ShownOption(str(index), level.label) for index, level in enumerate(question.levels)]
        case Predicate():
            described = (question.true, question.false) if family.true_first else (question.false, question.true)
            yield [ShownOption(side, described[place]) for place, side in enumerate(family.sides)]


def _key(value: str | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class _OwnWords:
    """The variables of a decision template, for each prompt; `lists` says that it reads the `questions` of all."""

    def __init__(
        self,
        family: DecisionFamily,
        labels: Sequence[str],
        params: DecisionPrompt,
        asked: list[list[list[ShownOption]]],
        *,
        lists: bool,
    ) -> None:
        self._arranged: Callable[[Any], Any] = _sorted if family.sorted_keys else lambda value: value
        self._labels = labels
        self._questions = params.questions
        self._names = params.names
        self._state = self._arranged(params.state)
        self._listed = [self._question(place, readings[0]) for place, readings in enumerate(asked)] if lists else []

    def chat(self, index: int, items: list[ShownOption]) -> Chat:
        """Return one question as a chat without messages."""
        own, others = self._question(index, items), [*self._listed]
        if others:
            others[index] = own
        return Chat(messages=[], template_args={**own, "state": self._state, "questions": others, "images": []})

    def _question(self, place: int, items: list[ShownOption]) -> dict[str, Any]:
        asked = self._questions[place]
        options = [
            {"key": item.key, "description": self._arranged(item.description), "label": label}
            for item, label in zip(items, self._labels, strict=False)
        ]
        instructions = "" if asked.instructions is None else self._arranged(asked.instructions)
        return {
            "id": self._names[place],
            "type": _TYPES[type_of(asked)],
            "instructions": instructions,
            "options": options,
        }


def _sorted(value: Any) -> Any:
    """Return a JSON value with the keys of its objects in order."""
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return [_sorted(item) for item in value]
    return value


def _conversation(params: DecisionPrompt, question: Question, items: list[ShownOption], labels: Sequence[str]) -> Chat:
    """Return the question as a chat: the state comes first, so that it is the prefix of all questions."""
    lines = [f"Question: {_SIDES if question.instructions in EMPTY else shown(question.instructions)}"]
    for item, label in zip(items, labels, strict=False):
        key, description = item if not isinstance(question, Score) else (shown(item.description), None)
        lines.append(f"{label}. {key}" + (f": {shown(description)}" if description not in (None, "") else ""))
    asked = "\n".join(["", "", *lines, _LAST])
    messages = params.messages
    called = {call.id: call.function.name for each in messages or [] for call in each.tool_calls or []}
    told = [part for each in messages or [] for part in _told(each, called)]
    parts = [TextPart(shown(params.state))] if messages is None else told
    content = _joined([*parts, TextPart(asked)])
    return Chat(messages=[Message("system", _SYSTEM), Message("user", content)], reasoning="off")


def _told(message: Message, called: Mapping[str, str]) -> Iterator[TextPart | ImagePart | AudioPart]:
    """Yield a message of the state as a part of a text about a conversation, each call in a line.

    `called` are the names of tools by the call's id, because a result may have the id alone.
    """
    name = message.name or called.get(message.tool_call_id or "")
    yield TextPart(f"{message.role} {name}: " if name else f"{message.role}: ")
    yield from message.content if isinstance(message.content, list) else [TextPart(message.text)]
    calls = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or []]
    yield TextPart("\n".join([*[""] * bool(message.content and calls), *calls]) + "\n")


def _joined(parts: list[TextPart | ImagePart | AudioPart]) -> str | list[TextPart | ImagePart | AudioPart]:
    """Return parts as one text, if each is text."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(parts) else parts
