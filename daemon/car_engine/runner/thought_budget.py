"""The bound on an answer's thoughts, in tokens."""

from car_base.ipc.frames import Reading
from car_engine.output.families import FAMILIES
from car_engine.output.reader import OutputReader
from car_engine.runner.stepper import TokenSampler


class ThoughtBudget:
    """Counts the tokens of thoughts; a thought that has them all goes on with `closing`, the tokens of its end."""

    def __init__(self, most: int, closing: list[int], sampler: TokenSampler, reader: OutputReader) -> None:
        self._left = most
        self._closing = closing
        self._sampler = sampler
        self._reader = reader
        self._thinking = False
        self.look()

    def look(self) -> None:
        """Count the token that the reader read last, and decide the next tokens."""
        self._left -= self._thinking
        self._thinking = self._reader.thinking
        if self._thinking and self._left <= 0 and not self._sampler.due:
            self._sampler.due = list(self._closing)
        # Tokens of right guesses are read after their step, so a step has no more of them than may be thought.
        self._sampler.ahead = max(1, self._left) if self._reader.may_think else None


def closing_text(reading: Reading, *, bound: bool) -> str | None:
    """Return the text that ends a thought, as `reasoning: off` ends it; None if answers have no thoughts.

    A grammar, if the answer is `bound` by one, begins right behind the thought.
    """
    if reading.thinking is not None:
        return f"\n\n{reading.thinking.close}" + ("" if bound else "\n\n")
    header = FAMILIES[reading.tools].header if reading.tools is not None else None
    return header.ends[0] if header is not None and header.thought is not None else None
