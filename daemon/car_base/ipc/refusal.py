"""The exception for a request that cannot run."""


class Refusal(Exception):
    """A reason of the error table and its data."""

    def __init__(self, reason: str, **data: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data
