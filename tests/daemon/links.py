"""What the daemon has of an engine that is up."""

from msgspec import Struct


class Link:
    """An engine that keeps what it is sent."""

    pid = 4242

    def __init__(self) -> None:
        self.sent: list[Struct] = []

    def send(self, message: Struct) -> None:
        self.sent.append(message)

    async def wait(self) -> None: ...

    def kill(self) -> None: ...

    async def stop(self) -> None: ...
