"""Images into rows, in a thread of their own: a projector takes seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from car_daemon.engine.batching.sequence import Picture
from car_daemon.engine.frames import Fault, ImageSlot
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
    """A request's images as rows and the tokens around them, by position, or why there are none."""

    key: int
    pictures: list[Picture]
    tokens: list[tuple[int, list[int]]]
    fault: Fault | None = None


class Projector(Protocol):
    """What makes pieces of an image: objects with `tokens`, or with `rows`."""

    def encode(self, data: bytes) -> list[Any]:
        """Return the pieces of an image in order; raises ImageError, and RuntimeError where it fails itself."""
        ...


class Encoder:
    """Encodes images for the loop."""

    def __init__(self, projector: Projector, inbox: Inbox[Encode], tell: Callable[[Encoded], None]) -> None:
        self._projector = projector
        self._inbox = inbox
        self._tell = tell

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self._inbox.take(wait=True))

    def turn(self, jobs: list[Encode]) -> None:
        """Tell what those images are that are wanted, in order."""
        for job in jobs:
            encoded = self.encoded(job)
            if job.wanted:
                self._tell(encoded)

    def encoded(self, job: Encode) -> Encoded:
        """Encode the images of one request, as long as they are wanted."""
        encoded = Encoded(job.key, [], [])
        try:
            for image in job.images:
                if not job.wanted:
                    break
                self._place(image, encoded.pictures, encoded.tokens)
        except ImageError:
            return Encoded(job.key, [], [], "image")
        except RuntimeError:
            return Encoded(job.key, [], [], "projector")
        return encoded

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
