"""The requests of a load, the same for the same seed."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from msgspec import Struct

# Plain tokens in every vocabulary of byte pairs: none in this range is a control token.
_TOKENS = range(300, 500)
# fmt: off
WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school",
    "state", "family", "group", "country", "place", "case", "week", "company", "system", "work",
    "night", "point", "home", "water", "room", "story", "fact", "month", "lot", "right", "study",
    "book", "eye", "job", "word", "issue", "side", "kind", "head", "house",
]
# fmt: on
_FORM = "give a length of 1 or more, or two with a dash, the smaller one first"


class Lengths(Struct, frozen=True):
    """Lengths in tokens, uniform between two bounds."""

    low: int
    high: int

    def draw(self, chance: Random) -> int:
        """Return a random length."""
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse_lengths(text: str) -> Lengths:
    """Parse `64` or `15-105`; raises ValueError."""
    low, dash, high = text.partition("-")
    try:
        lengths = Lengths(int(low), int(high) if dash else int(low))
    except ValueError:
        raise ValueError(_FORM) from None
    if not 1 <= lengths.low <= lengths.high:
        raise ValueError(_FORM)
    return lengths


class PlannedRequest(Struct, frozen=True):
    """A prompt as text or tokens, and the length of its answer in tokens."""

    prompt: str | list[int]
    max_tokens: int

    @property
    def params(self) -> dict[str, Any]:
        """The members of `infer_stream`."""
        return {"prompt" if isinstance(self.prompt, str) else "tokens": self.prompt, "max_tokens": self.max_tokens}


class Workload(Struct, frozen=True, kw_only=True):
    """Clients in a closed loop or, with a `rate`, Poisson arrivals.

    It ends after `requests`, or after `seconds`: then no request is sent, and later pieces do not count. Pieces in the
    first `warm_up` seconds do not count either. `options` are members of every request.
    """

    clients: int = 1
    rate: float | None = None
    requests: int | None = None
    seconds: float | None = None
    warm_up: float = 0.0
    prompts: Lengths = Lengths(16, 16)
    answers: Lengths = Lengths(64, 64)
    shared_prefix: int = 0
    # Prompts are words of this mean length; without it they are tokens.
    tokens_per_word: float | None = None
    options: dict[str, Any] = {}
    seed: int = 1

    def all_requests(self) -> Iterator[PlannedRequest]:
        """Yield the requests in order, without end if only time ends the workload."""
        chance = Random(self.seed)
        prompt = self._prompts_of_tokens() if self.tokens_per_word is None else self._prompts_of_words()
        number = 0
        while self.requests is None or number < self.requests:
            yield PlannedRequest(prompt(self.prompts.draw(chance), chance), self.answers.draw(chance))
            number += 1

    def arrivals(self) -> Iterator[float]:
        """Yield arrival times in seconds from the start, `rate` a second on average and independent of each other."""
        assert self.rate is not None
        # A generator of its own, so that another rate sends the same requests.
        chance, moment = Random(self.seed + 1), 0.0
        while True:
            moment += chance.expovariate(self.rate)
            yield moment

    def _prompts_of_tokens(self) -> Callable[[int, Random], list[int]]:
        beginning = Random(self.seed).choices(_TOKENS, k=self.shared_prefix)
        return lambda length, chance: beginning + chance.choices(_TOKENS, k=length)

    def _prompts_of_words(self) -> Callable[[int, Random], str]:
        """Return a maker of prompts that are about as long as required in tokens."""
        assert self.tokens_per_word is not None
        per_word = self.tokens_per_word

        def words(tokens: int, chance: Random) -> str:
            return " ".join(chance.choices(WORDS, k=max(1, round(tokens / per_word))))

        beginning = words(self.shared_prefix, Random(self.seed)) + " " if self.shared_prefix else ""
        return lambda length, chance: beginning + words(length, chance)
