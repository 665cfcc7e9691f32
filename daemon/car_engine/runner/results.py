"""The loop's results on their way to the daemon, for as long as its weights are those that were loaded."""

from collections.abc import Callable

from car_base.host.file_identity import WeightsOverwritten
from car_base.ipc.frames import FromEngine, Overwritten, StepDone


class CheckedResults:
    """Sends frames, but none that ends an answer once the model's file was overwritten."""

    def __init__(self, send: Callable[[FromEngine], None], is_overwritten: Callable[[], bool]) -> None:
        self._send = send
        self._is_overwritten = is_overwritten

    def send(self, message: FromEngine) -> None:
        """Send a frame; raises WeightsOverwritten in place of the end of an answer, once the daemon was notified."""
        if isinstance(message, StepDone):
            for update in message.updates:
                if update.end is not None and self._is_overwritten():
                    self._send(Overwritten())
                    raise WeightsOverwritten
        self._send(message)
