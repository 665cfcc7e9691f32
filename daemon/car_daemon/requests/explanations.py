"""The last prompts of each caller: how much of each was computed, and why."""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, structs

from car_base.ipc.codec import TOKEN_BYTES
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin
from car_protocol.answer import MOSTLY_NEW, Parted, Usage
from car_protocol.conversation import Message
from car_protocol.envelope import Id
from car_protocol.status import ReadPrompt

_MOST = 32  # prompts of a caller
_CALLERS = 64  # the caller without a request for longest is forgotten
# Tokens from one remembered place of a prompt to the next: 32 prompts of 64 callers with 8,192 tokens take 2 MiB.
_STRIDE = 64
_BYTES = _STRIDE * TOKEN_BYTES


class Answered(NamedTuple):
    """A request that was answered, the namespace of its cells, and the tokens and messages of its prompt."""

    origin: CallOrigin
    model: str
    engine: int | None
    namespace: str | None
    tokens: bytes
    messages: list[Message]


class _Known(Struct, frozen=True):
    """A prompt with numbers for its places, the engine that read it, and the time of its answer."""

    prompt: ReadPrompt
    time: float
    engine: int | None
    places: "array[int]"

    def common(self, places: "array[int]", tokens: bytes) -> int:
        """Return how many of its first tokens another prompt has too: up to a place, or all."""
        alike = next((n for n, (one, other) in enumerate(zip(self.places, places, strict=False)) if one != other), None)
        if alike is None:
            alike = min(len(self.places), len(places))
        if not alike:
            return 0
        size, last = self.prompt.prompt_tokens, alike - 1
        if alike == len(self.places) - 1 and size * TOKEN_BYTES <= len(tokens):
            rest = tokens[last * _BYTES : size * TOKEN_BYTES]
            if hash((places[last], rest)) == self.places[-1]:
                return size
        return min(last * _STRIDE, size, len(tokens) // TOKEN_BYTES)


class Explanations:
    """Remembers prompts by caller; `is_up` tells whether an engine is there, whose numbers are never used again."""

    def __init__(self, is_up: Callable[[int], bool], clock: Callable[[], float]) -> None:
        self._is_up = is_up
        self._clock = clock
        self._callers: OrderedDict[Identity, deque[_Known]] = OrderedDict()  # the newest prompt first

    def __repr__(self) -> str:
        return f"<Explanations of {sum(map(len, self._callers.values()))} prompts>"

    def add(self, answered: Answered, usage: Usage, *, given: bool = False) -> Usage:
        """Remember a prompt; return its usage with the reason as its caller can read it.

        The first message is `given` if it is of the model's entry, and not the caller's.
        """
        origin = answered.origin
        known = self._callers.setdefault(origin.identity, deque(maxlen=_MOST))
        self._callers.move_to_end(origin.identity)
        if len(self._callers) > _CALLERS:
            self._callers.popitem(last=False)
        places = _places(answered)
        lost = self._restarted(known, places, answered, usage)
        parted = _chief(lost, _named(usage.parted, answered.messages, given=given))
        prompt = ReadPrompt(
            id=origin.id,
            connection=origin.connection,
            model=answered.model,
            age_s=0.0,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            client=origin.client,
            parted=parted,
        )
        known.appendleft(_Known(prompt, self._clock(), answered.engine, places))
        return structs.replace(usage, parted=parted)

    def of(self, identity: Identity, request: Id | None) -> list[ReadPrompt]:
        """Return the last prompts of a caller, or the prompts of one request."""
        now = self._clock()
        return [
            structs.replace(each.prompt, age_s=round(now - each.time, 3))
            for each in self._callers.get(identity, ())
            if request is None or each.prompt.id == request
        ]

    def _restarted(self, known: deque[_Known], places: "array[int]", answered: Answered, usage: Usage) -> Parted | None:
        """Return the reason if engines that are gone had more of the prompt than is there or was read since."""
        gone = {
            each.engine
            for each in known
            if each.engine is not None and each.engine != answered.engine and not self._is_up(each.engine)
        }
        if not gone:
            return None  # in most cases, and without a look at all prompts
        at, there = 0, usage.cached_tokens
        for each in known:
            common = min(each.common(places, answered.tokens), usage.prompt_tokens)
            if each.engine in gone:
                at = max(at, common)
            elif each.engine is not None:
                there = max(there, common)
        # The last token of a prompt is always computed.
        return Parted(reason="restart", at=at, tokens=at - there) if at - there > 1 else None


def _places(answered: Answered) -> "array[int]":
    """Return a number for whose cells a prompt has, then for its tokens up to each place, the last for its whole text.

    Another process has other numbers for the same tokens.
    """
    places = array("q", [hash((answered.model, answered.namespace))])
    for start in range(0, len(answered.tokens), _BYTES):
        places.append(hash((places[-1], answered.tokens[start : start + _BYTES])))
    return places


def _chief(lost: Parted | None, parted: Parted | None) -> Parted | None:
    """Return the reason for more tokens; what is mostly new counts least."""
    reasons = [each for each in (lost, parted) if each is not None]
    return max(reasons, key=lambda each: (each.reason not in MOSTLY_NEW, each.tokens), default=None)


def _named(parted: Parted | None, messages: list[Message], *, given: bool) -> Parted | None:
    """Return a reason with the role of the message, and its number among the caller's own."""
    if parted is None or parted.message is None or parted.message >= len(messages):
        return parted
    role, number = messages[parted.message].role, parted.message - given
    return structs.replace(parted, role=role, message=number if number >= 0 else None)
