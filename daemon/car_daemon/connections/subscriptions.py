"""Notifications that one client subscribed to."""

from collections.abc import Callable


class Subscriptions:
    """The models whose capacity changes are sent to a client, and the end of the status that is sent at intervals."""

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.end_status: Callable[[], None] = lambda: None  # set by the subscription

    def watch_capacity(self, model: str, *, on: bool) -> None:
        """Begin or end the notifications of a model's capacity."""
        (self.models.add if on else self.models.discard)(model)
