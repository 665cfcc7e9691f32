"""A measured cost curve: the seconds of a model's steps on this machine."""

from typing import Annotated

from msgspec import Meta, Struct

_Size = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]


class Curve(Struct, frozen=True):
    """Seconds of a decode by rows (one of each sequence) and of a prefill by tokens of one prompt."""

    decode: dict[_Size, _Seconds]
    prefill: dict[_Size, _Seconds]

    def rates(self, sequences: int) -> list[float]:
        """Return the tokens per second with 1, 2, ... sequences, between the measured ones in proportion."""
        return [round(rows / self._seconds(rows), 3) for rows in range(1, sequences + 1)] if self.decode else []

    def prompt_share(self, sequences: int) -> float:
        """Return the cost of a prompt token, at the best chunk, in answer tokens; 1 where one of both is unknown."""
        if not self.decode or not self.prefill:
            return 1.0
        prompt = min(seconds / tokens for tokens, seconds in self.prefill.items())
        return round(min(1.0, prompt * sequences / self._seconds(sequences)), 4)

    def _seconds(self, rows: int) -> float:
        """Return the seconds of a decode; beyond the measured sizes a row costs as much as at the last."""
        above = min((size for size in self.decode if size >= rows), default=None)
        below = max((size for size in self.decode if size <= rows), default=None)
        if above is None or below is None:
            nearest = min(self.decode, key=lambda size: abs(size - rows))
            return self.decode[nearest] * max(1.0, rows / nearest)
        if above == below:
            return self.decode[above]
        part = (rows - below) / (above - below)
        return self.decode[below] + part * (self.decode[above] - self.decode[below])
