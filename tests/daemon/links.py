"""The daemon's view of an engine that is up."""

from msgspec import Struct

from car_base.ipc.frames import Ready


class Link:
    """An engine that keeps what it is sent."""

    pid = 4242
    fault: str | None = None
    host: str | None = None
    cut = False

    def __init__(self) -> None:
        self.sent: list[Struct] = []

    def waits(self) -> dict[str, float]:
        return {}

    def send(self, message: Struct) -> None:
        self.sent.append(message)

    async def wait(self) -> int:
        return 0

    def kill(self) -> None: ...

    async def stop(self) -> None: ...


def ready_of(
    *,
    sequences: int = 1,
    context_tokens: int = 256,
    kv_bytes: int = 0,
    device: str = "cpu",
    threads: int = 1,
    inputs: dict[str, float] | None = None,
) -> Ready:
    """Return what an engine tells once it can decode."""
    return Ready(
        sequences=sequences,
        policy="measured",
        context_tokens=context_tokens,
        kv_bytes=kv_bytes,
        device=device,
        threads=threads,
        can=[],
        inputs=inputs or {},
    )
