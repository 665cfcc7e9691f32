"""Prompts that were read lately, and the place at which a new prompt parts from the nearest."""

from collections import deque
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from car_base.ipc.types import PART_BYTES
from car_engine.batching.prefix import WORTH_TOKENS, Prefix, common_of

# Prompts remembered, as many as `Expected` does: 4 bytes a token, so 64 contexts are small beside the cells of one.
_MOST = 64

# A line of text shows where two prompts part.
SHOWN_TOKENS = 16

# The tokens in which a run is looked for: a page of text, so that the words after a clock are among them.
_PAGE = 512
# Powers of an odd number: a sum of tokens by them is a hash, which wraps at 64 bits.
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, place, 1 << 64) for place in range(1, WORTH_TOKENS + 1)], np.uint64)

_NOTHING = 0  # the digest of no tools
_BEGINNING = 3 * PART_BYTES  # tools, and two messages, as that of the system and the first of the user

Reason = Literal["tools", "system", "message", "template", "prompt", "evicted", "no_mark"]


class Parting(NamedTuple):
    """The reason why tokens are computed that an earlier prompt has, after `at` tokens in common with it.

    `message` is the number of the message that differs. `known` are some of the tokens with which the earlier prompt
    goes on; None if the prompts do not differ in what is computed.
    """

    reason: Reason
    at: int
    tokens: int
    message: int | None = None
    known: list[int] | None = None


class KnownPrompt:
    """Tokens that were read or written: a prompt and its answer; `parts` are digests of its tools and messages.

    `asked` is the number of its tokens that later prompts of the chat have too. `left` is the number of cells that
    stayed when the request ended: a model that goes back to marks alone may keep less than others could reuse.
    """

    def __init__(self, prefix: Prefix, parts: bytes, tail: int) -> None:
        self.prefix = prefix
        self.parts = parts
        self.asked = len(prefix) - tail
        self.parting: Parting | None = None
        self.beginnings = _beginnings(prefix, parts)
        self.left: int | None = None  # while it runs

    def __repr__(self) -> str:
        return f"<KnownPrompt {len(self.prefix)} tokens>"


class ReadPrompts:
    """The last prompts of an engine."""

    def __init__(self) -> None:
        self._prompts: deque[KnownPrompt] = deque(maxlen=_MOST)  # the newest last

    def __repr__(self) -> str:
        return f"<ReadPrompts {len(self._prompts)}>"

    def add(self, prompt: Prefix, parts: bytes, tail: int, *, at_hand: int, used: int) -> KnownPrompt:
        """Remember a prompt that starts with `used` cells, though cells of `at_hand` of its tokens exist."""
        read = KnownPrompt(prompt, parts, tail)
        read.parting = self._parting(read, at_hand, used)
        self._prompts.append(read)
        return read

    def _parting(self, read: KnownPrompt, at_hand: int, used: int) -> Parting | None:
        """Return the reason for most of what is computed; None if fewer tokens are than are worth a word.

        A message of a user or the model that differs is what conversations are made of, so it is the reason if there
        is no other.
        """
        prompt = read.prefix
        if len(prompt) - used < WORTH_TOKENS:
            return None
        alike = [each for each in self._prompts if not each.beginnings.isdisjoint(read.beginnings)]
        if not alike:
            return None
        nearest, at = _nearest(alike, read)
        known, most = nearest.prefix.tokens[at:], prompt.whole(min(at, len(prompt) - 1))
        reason, message = _place(nearest, read.parts, at)
        left = most if nearest.left is None else min(most, nearest.left)
        there = max(at_hand, used)
        found: list[tuple[Reason, int]] = [
            ("evicted", left - used if left - there >= WORTH_TOKENS else 0),
            ("no_mark", min(at_hand, most) - used + max(0, most - max(left, there))),
            (reason, min(len(known), len(prompt) - max(at, used))),
        ]
        found = [each for each in found if each[1] >= WORTH_TOKENS]
        if not found:
            return None
        chief, tokens = max(found, key=lambda each: (each[0] != "message", each[1]))
        if chief in ("evicted", "no_mark"):
            return Parting(chief, at, tokens)
        return Parting(chief, at, tokens, message, known[:SHOWN_TOKENS].tolist())


def _nearest(prompts: list[KnownPrompt], read: KnownPrompt) -> tuple[KnownPrompt, int]:
    """Return the prompt that has most of another one's first tokens, and how many it has.

    Of several it is the newest with the same tools; if none has the same tools, it is the newest.
    """
    prompt = read.prefix
    nearest, at = prompts[-1], common_of(prompts[-1].prefix.tokens, prompt.tokens)
    for each in reversed(prompts[:-1]):
        # One token tells that it has no more: prompts of one app part behind the same system message.
        if at < min(len(each.prefix), len(prompt)) and each.prefix.tokens[at] == prompt.tokens[at]:
            common = common_of(each.prefix.tokens, prompt.tokens)
            if common > at:
                nearest, at = each, common
    if _tools_of(nearest) != _tools_of(read):
        equals = (each for each in reversed(prompts) if _tools_of(each) == _tools_of(read))
        nearest = next((each for each in equals if common_of(each.prefix.tokens, prompt.tokens) == at), nearest)
    return nearest, at


def _tools_of(read: KnownPrompt) -> bytes:
    return read.parts[:PART_BYTES]


def _beginnings(prompt: Prefix, parts: bytes) -> frozenset[tuple[str, int, bytes | int]]:
    """Return names of the first tokens, of a run of the first page, and of the first two messages.

    Prompts that share none have little in common. Prompts whose system message begins with the time of day share the
    run, or the message after it. A prompt without a system message shares its first message with an earlier prompt in
    which this message is the second.
    """
    names: list[bytes | int] = [
        prompt.tokens[:WORTH_TOKENS].tobytes(),
        _run_of(prompt.tokens[:_PAGE]),
        *(each for each in _split(parts[:_BEGINNING]) if each != _NOTHING),
    ]
    return frozenset((prompt.namespace, prompt.step, name) for name in names)


def _run_of(page: NDArray[np.int32]) -> bytes:
    """Return the run of tokens whose hash is the least; pages with most of their runs in common mostly share it."""
    if len(page) <= WORTH_TOKENS:
        return page.tobytes()
    start = int(np.correlate(page.astype(np.uint64), _FACTORS).argmin())
    return page[start : start + WORTH_TOKENS].tobytes()


def _place(earlier: KnownPrompt, parts: bytes, at: int) -> tuple[Reason, int | None]:
    """Return the part in which a prompt of these parts differs from an earlier one, whose first `at` tokens it has."""
    if not (earlier.parts and parts):
        return "prompt", None
    pairs = enumerate(zip(_split(earlier.parts), _split(parts), strict=False))
    differs = next((number for number, (one, other) in pairs if one != other), None)
    if differs is None and at >= earlier.asked and len(parts) > len(earlier.parts):
        # The answer of the earlier prompt came back otherwise than the model wrote it.
        differs = len(earlier.parts) // PART_BYTES
    if differs is None:
        return "template", None
    if not differs:
        return "tools", None
    there = [found[differs] for found in (_split(earlier.parts), _split(parts)) if differs < len(found)]
    return "system" if any(part & 1 for part in there) else "message", differs - 1


def _split(parts: bytes) -> list[int]:
    return memoryview(parts).cast("Q").tolist()
