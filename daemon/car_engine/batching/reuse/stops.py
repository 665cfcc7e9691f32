"""Where the reading of a prompt stops, so that the state there can be kept: other prompts will go on from it."""

from bisect import bisect
from collections.abc import Iterable, Iterator

from car_engine.batching.prefix import WORTH_TOKENS, Prefix
from car_engine.batching.reuse.move_costs import MoveCosts

# A promise: the states of a prompt are copied in at most this part of the time in which the prompt is read.
_PART = 0.01
# A promise, in place of that one, for the states from which the next turn and the next chat go on: most conversations
# go on, and a short turn could not afford its state otherwise. Neither counts the step that a stop adds.
_NEXT = 0.03
_KNOWN = 2  # the rank of a place from which only a known prompt goes on
# A promise: an edited message is read again from at most so many tokens before it, unless so many tokens take less
# memory in all layers than a state.
_EDIT_TOKENS = 256


def stops(prompt: Prefix, start: int, partings: Iterable[int], own: tuple[int, ...], costs: MoveCosts) -> list[int]:
    """Return the stops of a prompt that is read from `start` on, in ascending order.

    They are before so many of its last tokens as `own` says, at its partings from other prompts, and in between, in
    this order of worth: another turn or another chat will come, but a known prompt may never come again.
    """
    reading = costs.compute(start, len(prompt))
    chosen = [start]
    for part, stop in _worthy(prompt, start, partings, own, costs.state_tokens):
        place = bisect(chosen, stop)
        apart = min(abs(each - stop) for each in chosen[max(0, place - 1) : place + 1])
        if start < stop < len(prompt) and apart >= WORTH_TOKENS and len(chosen) * costs.checkpoint <= part * reading:
            chosen.insert(place, stop)
    return chosen[1:]


def _worthy(
    prompt: Prefix, start: int, partings: Iterable[int], own: tuple[int, ...], state_tokens: float
) -> Iterator[tuple[float, int]]:
    """Yield the stops by their worth, each with the part of the reading that all up to it may take."""
    asked, *beginnings = (len(prompt) - max(1, count) for count in own)
    ranks = {**dict.fromkeys(partings, _KNOWN), asked: 1, **dict.fromkeys(beginnings, 0)}
    firsts: dict[int, int] = {}
    first = start
    for place in sorted(ranks):
        # Of places that are nearly one, the first serves all.
        if place - first >= WORTH_TOKENS:
            first = place
        firsts[first] = min(firsts.get(first, ranks[place]), ranks[place])
    spacing = int(max(_EDIT_TOKENS, min(state_tokens, len(prompt))))
    ranked = sorted(firsts, key=lambda place: (firsts[place], -place))
    for stop in (*ranked, *range(start + spacing, len(prompt), spacing)):
        yield _NEXT if firsts.get(stop, _KNOWN) < _KNOWN else _PART, prompt.whole(stop)
