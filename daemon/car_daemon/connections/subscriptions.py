"""Notifications that one client subscribed to."""

from collections.abc import Callable


class Subscriptions:
    """The models whose capacity changes are sent to a client, and the end of the status that is sent at intervals."""

    def __init__(self) -> None:
        self.models: set[str | None] = set()  # None is the default model, which a reload may change
        self.end_status: Callable[[], None] = lambda: None  # set by the subscription

    def watch_capacity(self, model: str | None) -> None:
        """Begin the notifications of a model's capacity, or of the default one's."""
        self.models.add(model)

    def end_capacity(self, model: str, *, default: bool) -> None:
        """End the notifications of a model's capacity, however they began."""
        self.models -= {model, None} if default else {model}
