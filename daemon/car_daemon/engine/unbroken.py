"""Whether a text goes on without a break for so long that cutting it into tokens needs more stack than there is."""

import re

from car_daemon.engine.refusal import Refusal

# Some pre-tokenizers match with regular expressions that recurse once and again for each character of a match, with
# 300 to 500 bytes of stack each. A match ends at the latest where one of these ends.
_UNBROKEN = (
    re.compile(r"[^ \t-\r]++"),
    re.compile(r"\s++"),
    re.compile(r"[ A-Za-z\x80-\U0010ffff]++"),
)
# No run of this many characters is refused, and every one of twice as many is.
MOST_UNBROKEN = 250_000
# What takes some pre-tokenizers a time that grows with the square of the run or faster; minutes for 200,000 digits.
_SQUARE = {"superbpe": re.compile(r"\d++"), "jais-2": re.compile(r"\s++")}
MOST_SQUARE = 2_000


def check_unbroken(text: str, pre: str | None = None) -> None:
    """Raise Refusal for a text with a longer run: of no white space, of white space alone, or of bare words.

    `pre` names the model's pre-tokenizer.
    """
    if pre in _SQUARE:
        _check(text, MOST_SQUARE, (_SQUARE[pre],))
    _check(text, MOST_UNBROKEN, _UNBROKEN)


def _check(text: str, most: int, runs: tuple[re.Pattern[str], ...]) -> None:
    for start in range(0, len(text) - most + 1, most):
        if any(run.fullmatch(text, start, start + most) for run in runs):
            raise Refusal("limit", limit="max_unbroken_characters", value=most)
