"""One answer with its times."""

from itertools import pairwise

from msgspec import Struct


class Timed(Struct, frozen=True):
    """When it was asked for, when its pieces came, in seconds of one clock, and what its end said."""

    asked: float
    came: list[float]
    tokens: int
    prompt_tokens: int | None = None
    queue_ms: float | None = None

    @property
    def first_ms(self) -> float:
        """Time to the first piece."""
        return (self.came[0] - self.asked) * 1000

    @property
    def gaps_ms(self) -> list[float]:
        """Times between the pieces."""
        return [(later - earlier) * 1000 for earlier, later in pairwise(self.came)]

    @property
    def seconds(self) -> float:
        """Time to the last piece."""
        return self.came[-1] - self.asked

    def tokens_within(self, begin: float, end: float) -> float:
        """Return how many of its tokens came between two moments; a piece may hold several."""
        inside = sum(begin <= moment <= end for moment in self.came)
        return self.tokens * inside / len(self.came)
