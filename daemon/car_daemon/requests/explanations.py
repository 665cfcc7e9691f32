"""The last prompts of each caller: how much of each was computed, and why."""

from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct, structs

from car_base.ipc.types import PART_BYTES
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin
from car_protocol.answer import Parted, Usage
from car_protocol.conversation import Message
from car_protocol.envelope import Id
from car_protocol.status import ReadPrompt

_MOST = 32  # prompts of a caller
_CALLERS = 64  # the caller without a request for longest is forgotten
_SYSTEM = ("system", "developer")


class Answered(NamedTuple):
    """A request that was answered, and the namespace of its cells.

    `parts` are digests of its tools and messages, for a prompt without messages its tokens.
    """

    origin: CallOrigin
    model: str
    engine: int | None
    namespace: str | None
    parts: bytes
    messages: list[Message]


class _Known(Struct, frozen=True):
    """A prompt: the digest of its `size` bytes of parts, the engine that read it, and the time of its answer."""

    prompt: ReadPrompt
    time: float
    engine: int | None
    size: int
    digest: bytes


class Explanations:
    """Remembers prompts by caller; `is_up` tells whether an engine is there, whose numbers are never used again."""

    def __init__(self, is_up: Callable[[int], bool], clock: Callable[[], float]) -> None:
        self._is_up = is_up
        self._clock = clock
        self._callers: OrderedDict[Identity, deque[_Known]] = OrderedDict()  # the newest prompt first

    def __repr__(self) -> str:
        return f"<Explanations of {sum(map(len, self._callers.values()))} prompts>"

    def add(self, answered: Answered, usage: Usage) -> Usage:
        """Remember a prompt; return its usage with the reason as its caller can read it."""
        origin = answered.origin
        known = self._callers.setdefault(origin.identity, deque(maxlen=_MOST))
        self._callers.move_to_end(origin.identity)
        if len(self._callers) > _CALLERS:
            self._callers.popitem(last=False)
        parted = self._restarted(known, answered, usage) or _named(usage.parted, answered.messages)
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
        size = len(answered.parts)
        known.appendleft(_Known(prompt, self._clock(), answered.engine, size, _digest(answered, size)))
        return structs.replace(usage, parted=parted)

    def of(self, identity: Identity, request: Id | None) -> list[ReadPrompt]:
        """Return the last prompts of a caller, or those of one request."""
        now = self._clock()
        return [
            structs.replace(each.prompt, age_s=round(now - each.time, 3))
            for each in self._callers.get(identity, ())
            if request is None or each.prompt.id == request
        ]

    def _restarted(self, known: deque[_Known], answered: Answered, usage: Usage) -> Parted | None:
        """Return the reason if an engine that is gone was the last one to read the conversation so far."""
        gone = {
            each.engine
            for each in known
            if each.engine is not None and each.engine != answered.engine and not self._is_up(each.engine)
        }
        if not gone:
            return None  # in most cases, and without a digest of a long prompt
        for each in known:
            if 0 < each.size <= len(answered.parts) and each.digest == _digest(answered, each.size):
                at = min(each.prompt.prompt_tokens, usage.prompt_tokens)
                lost = at - usage.cached_tokens
                # The last token of a prompt is always computed.
                return Parted(reason="restart", at=at, tokens=lost) if each.engine in gone and lost > 1 else None
        return None


def _digest(answered: Answered, size: int) -> bytes:
    own = f"{answered.model}\n{answered.namespace}\n".encode()
    return blake2b(own + answered.parts[:size], digest_size=PART_BYTES).digest()


def _named(parted: Parted | None, messages: list[Message]) -> Parted | None:
    """Return a reason with the role of the message; that in a system message has a name of its own."""
    if parted is None or parted.message is None or parted.message >= len(messages):
        return parted
    role = messages[parted.message].role
    return structs.replace(parted, reason="system" if role in _SYSTEM else "message", role=role)
