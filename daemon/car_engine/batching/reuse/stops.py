"""Where the reading of a prompt stops, so that the state there can be kept: other prompts will go on from it."""

from collections.abc import Iterable, Iterator

from car_engine.batching.prefix import WORTH_TOKENS, Prefix
from car_engine.batching.reuse.move_costs import MoveCosts

# A promise: keeping states takes at most this part of the time in which their prompts are read.
_PART = 0.01
# A promise: an edited message is read again from at most so many tokens before it, unless so many tokens take less
# memory in all layers than a state.
_EDIT_TOKENS = 256


def stops(prompt: Prefix, start: int, partings: Iterable[int], tail: int, costs: MoveCosts) -> list[int]:
    """Return the stops of a prompt that is read from `start` on, in ascending order.

    They are where it parts from other prompts, before its last `tail` tokens, and in between, in this order of worth.
    """
    chosen = [start]
    spacing = int(max(_EDIT_TOKENS, min(costs.state_tokens, len(prompt))))
    for stop in _worthy(prompt, partings, tail, range(start + spacing, len(prompt), spacing)):
        before = max((each for each in chosen if each <= stop), default=stop)
        apart = min(abs(each - stop) for each in chosen)
        affordable = costs.checkpoint <= _PART * costs.compute(before, stop)
        if start < stop < len(prompt) and apart >= WORTH_TOKENS and affordable:
            chosen.append(stop)
    return sorted(chosen[1:])


def _worthy(prompt: Prefix, partings: Iterable[int], tail: int, spaced: Iterable[int]) -> Iterator[int]:
    for stop in (*sorted(partings, reverse=True), len(prompt) - max(1, tail), *spaced):
        yield prompt.whole(stop)
