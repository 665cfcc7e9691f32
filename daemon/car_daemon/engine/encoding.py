"""Images into rows, in a thread of their own: a projector takes seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from car_daemon.engine.batching.sequence import Picture
from car_daemon.engine.frames import ImageSlot
from car_daemon.engine.images import ImageError
from car_daemon.engine.inbox import Inbox


@dataclass(slots=True)
class Encode:
    """The images of one request; the loop says when they are `wanted` no more."""

    key: int
    images: list[ImageSlot]
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request's images as rows, and the tokens around them by position; no pictures where that failed."""

    key: int
    pictures: list[Picture] | None
    tokens: list[tuple[int, list[int]]]


class Projector(Protocol):
    """What makes pieces of an image: objects with `tokens`, or with `rows`."""

    def encode(self, data: bytes) -> list[Any]:
        """Return the pieces of an image in order; raises ImageError, and RuntimeError where it fails itself."""
        ...


class Encoder:
    """Encodes images for the loop."""

    def __init__(self, projector: Projector, inbox: Inbox[Encode | None], tell: Callable[[Encoded], None]) -> None:
        self._projector = projector
        self._inbox = inbox
        self._tell = tell

    def run(self) -> None:
        """Work until None comes."""
        while True:
            for job in self._inbox.take(wait=True):
                if job is None:
                    return
                encoded = self.encoded(job)
                if job.wanted:
                    self._tell(encoded)

    def encoded(self, job: Encode) -> Encoded:
        """Encode the images of one request, as long as they are wanted."""
        pictures: list[Picture] = []
        tokens: list[tuple[int, list[int]]] = []
        try:
            for image in job.images:
                if not job.wanted:
                    return Encoded(job.key, None, [])
                self._place(image, pictures, tokens)
        except (ImageError, RuntimeError):
            return Encoded(job.key, None, [])
        return Encoded(job.key, pictures, tokens)

    def _place(self, image: ImageSlot, pictures: list[Picture], tokens: list[tuple[int, list[int]]]) -> None:
        position = image.start
        for piece in self._projector.encode(image.data):
            rows = getattr(piece, "rows", None)
            if rows is None:
                tokens.append((position, piece.tokens))
                position += len(piece.tokens)
            else:
                pictures.append(Picture(position, rows))
                position += len(rows)
        if position != image.start + image.count:
            raise RuntimeError("an image takes another number of positions than was counted")
