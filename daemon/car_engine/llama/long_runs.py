"""Long runs of one kind of character, which pre-tokenizers need too much stack or time for."""

import re

from car_base.ipc.refusal import Refusal

# Some pre-tokenizers match with regular expressions that recurse for each character of a match, 300 to 500 bytes of
# stack each. Every match ends at the latest where one of these runs ends.
_RUNS = (
    re.compile(r"[^ \t-\r]++"),
    re.compile(r"\s++"),
    re.compile(r"[ A-Za-z\x80-\U0010ffff]++"),
)
# Characters of a run that is never refused; a run of twice as many always is.
LONGEST_RUN = 250_000
# Runs for which a pre-tokenizer takes time that grows at least with their square: minutes for 200,000 digits.
_SLOW = {"superbpe": re.compile(r"\d++"), "jais-2": re.compile(r"\s++")}
LONGEST_SLOW_RUN = 2_000


def check_runs(text: str, pre: str | None = None) -> None:
    """Raise Refusal for a text with a longer run: without whitespace, of whitespace alone, or of bare words.

    `pre` names the model's pre-tokenizer.
    """
    if pre in _SLOW:
        _check(text, LONGEST_SLOW_RUN, (_SLOW[pre],))
    _check(text, LONGEST_RUN, _RUNS)


def _check(text: str, most: int, runs: tuple[re.Pattern[str], ...]) -> None:
    for start in range(0, len(text) - most + 1, most):
        if any(run.fullmatch(text, start, start + most) for run in runs):
            raise Refusal("limit", limit="max_unbroken_characters", value=most)
