"""An answer with its times."""

from itertools import pairwise

from msgspec import Struct


class TimedAnswer(Struct, frozen=True):
    """The times of sending and of every piece, in seconds of one clock, and the figures at the end of the answer."""

    sent_at: float
    piece_times: list[float]
    tokens: int
    prompt_tokens: int | None = None
    queue_ms: float | None = None

    @property
    def first_ms(self) -> float:
        """Time to the first piece, in ms."""
        return (self.piece_times[0] - self.sent_at) * 1000

    @property
    def gaps_ms(self) -> list[float]:
        """Times between the pieces, in ms."""
        return [(later - earlier) * 1000 for earlier, later in pairwise(self.piece_times)]

    @property
    def seconds(self) -> float:
        """Time to the last piece, in s."""
        return self.piece_times[-1] - self.sent_at

    def tokens_within(self, begin: float, end: float) -> float:
        """Return the number of tokens between two times, in proportion to the pieces."""
        inside = sum(begin <= moment <= end for moment in self.piece_times)
        return self.tokens * inside / len(self.piece_times)
