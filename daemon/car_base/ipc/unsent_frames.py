"""The frames that wait for an engine to read."""

from collections import OrderedDict
from itertools import count

from msgspec import Struct

from car_base.ipc.frames import Forget, Prepare, PrepareTexts


class UnsentFrames:
    """Encoded frames in their order; a prompt leaves once its request is to be forgotten.

    So the prompts are those of live requests, whose bytes the queue bounds.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._frames: OrderedDict[int, bytes] = OrderedDict()  # by number
        self._prompts: dict[int, int] = {}  # numbers of prompts, by the key of their request

    def __repr__(self) -> str:
        return f"<UnsentFrames {len(self._frames)}>"

    def add(self, message: Struct, frame: bytes) -> None:
        """Append the frame of a message."""
        number = next(self._numbers)
        if isinstance(message, Forget):
            self._frames.pop(self._prompts.pop(message.key, -1), None)
        elif isinstance(message, Prepare | PrepareTexts):
            self._prompts[message.key] = number
        self._frames[number] = frame

    def take(self) -> bytes | None:
        """Remove and return the oldest frame; None without any."""
        if not self._frames:
            self._prompts.clear()
            return None
        return self._frames.popitem(last=False)[1]
