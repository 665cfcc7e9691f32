"""The budget of a request: the time that its guesses may lose, which grows with each decode and with what they win."""

# All in decodes without guesses. What guesses may lose before any of them won: a try of four rows where rows are dear.
_START = 2.5
# The most that is kept, so that what a long repetition won is not lost once the text goes on without one.
MOST = 8.0
# The part of a decode that guesses may lose.
_PART = 0.004
# A decode counts as at most this many times its expected cost, because a stall of the machine is no fault of guesses.
_MOST_EXCESS = 2.0


class Budget:
    """The loss that the next guesses of a request may cause, in decodes without guesses."""

    def __init__(self) -> None:
        self.left = _START

    def __repr__(self) -> str:
        return f"<Budget {self.left:.2f} of {MOST:.0f} decodes>"

    def earn(self) -> None:
        """Count a decode without guesses."""
        self.left = min(MOST, self.left + _PART)

    def settle(self, tokens: int, cost: float, expected: float) -> None:
        """Count a decode with guesses: the tokens that it brought the request, its cost, and the expected one."""
        self.left = min(MOST, self.left + tokens - min(cost, _MOST_EXCESS * expected))
