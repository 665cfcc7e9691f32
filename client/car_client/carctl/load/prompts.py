"""Random prompts of a given length, with a common beginning on request."""

from collections.abc import Callable
from random import Random

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

Prompt = str | list[int]
MakePrompt = Callable[[int, Random], Prompt]


def of_tokens(shared: int, seed: int) -> MakePrompt:
    """Return a maker of prompts of tokens, of which the first `shared` are the same in all prompts."""
    beginning = Random(seed).choices(_TOKENS, k=shared)
    return lambda length, chance: beginning + chance.choices(_TOKENS, k=length)


def of_words(tokens_per_word: float, shared: int, seed: int) -> MakePrompt:
    """Return a maker of prompts of words, about as long as required in tokens."""

    def words(tokens: int, chance: Random) -> str:
        return " ".join(chance.choices(WORDS, k=max(1, round(tokens / tokens_per_word))))

    beginning = words(shared, Random(seed)) + " " if shared else ""
    return lambda length, chance: beginning + words(length, chance)
