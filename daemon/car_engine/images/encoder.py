"""Images into rows, in a thread of their own because a projector takes seconds."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import NoReturn

from car_base.ipc.frames import NAMELESS, Fault, ImageSlot, Names
from car_base.ipc.inbox import Inbox
from car_base.ipc.turns import Path, Turns
from car_engine.batching.sequences import ImageRows
from car_engine.images.audio_file import AudioError
from car_engine.images.image_file import ImageError
from car_engine.images.piece_cache import Piece, PieceCache, TokensPiece


@dataclass(slots=True)
class Encode:
    """The images of one request; the loop clears `wanted` when the request no longer needs them."""

    key: int
    owner: int  # the client's uid
    images: list[ImageSlot]
    names: Names = NAMELESS
    wanted: bool = True

    @property
    def path(self) -> Path:
        """Whose it is."""
        return self.owner, *self.names


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request's images as rows and the tokens around them, by position; or the fault."""

    key: int
    pictures: list[ImageRows]
    tokens: list[tuple[int, list[int]]]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A job, its images that are left, and what the images before became."""

    job: Encode
    images: deque[ImageSlot]
    encoded: Encoded


class Encoder:
    """Encodes the files of images and sounds for the loop, the same file of the same owner once.

    `image` and `audio` return the pieces of a file in order; both raise RuntimeError if the projector fails, `image`
    raises ImageError, and `audio` AudioError.
    """

    def __init__(
        self,
        image: Callable[[bytes], list[Piece]],
        audio: Callable[[bytes], list[Piece]],
        inbox: Inbox[Encode],
        report: Callable[[Encoded], None],
    ) -> None:
        self._image = image
        self._audio = audio
        self._cache = PieceCache()
        self._inbox = inbox
        self._report = report
        self._turns = Turns[_Begun]()

    @property
    def busy(self) -> bool:
        """True while a job has images left."""
        return not self._turns.empty

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self._inbox.receive(wait=not self.busy))

    def turn(self, jobs: list[Encode]) -> None:
        """Add jobs, then encode one image: users and their names take turns, and so do the jobs of a label.

        Neither a job with many images nor a user or a name with many jobs keeps the others waiting.
        """
        for job in jobs:
            self._turns.add(job.path, _Begun(job, deque(job.images), Encoded(job.key, [], [])))
        begun = self._turns.take()
        if not begun.job.wanted:
            return
        started = time.perf_counter()
        encoded = self._advance(begun)
        if encoded is None:
            self._turns.add(begun.job.path, begun)
        self._turns.charge(begun.job.path, time.perf_counter() - started)
        if encoded is not None:
            self._report(encoded)

    def _advance(self, begun: _Begun) -> Encoded | None:
        """Encode one image of a job; return its result with the last one, or with the first that fails."""
        job, encoded = begun.job, begun.encoded
        try:
            self._place(job.owner, begun.images.popleft(), encoded.pictures, encoded.tokens)
        except AudioError:
            return Encoded(job.key, [], [], "audio")
        except ImageError:
            return Encoded(job.key, [], [], "image")
        except RuntimeError:
            return Encoded(job.key, [], [], "projector")
        return None if begun.images else encoded

    def _place(
        self, owner: int, image: ImageSlot, pictures: list[ImageRows], tokens: list[tuple[int, list[int]]]
    ) -> None:
        position = image.start
        key = owner, sha256(image.data).digest()
        pieces = self._cache.get(key)
        if pieces is None:
            pieces = (self._audio if image.audio else self._image)(image.data)
            self._cache.put(key, pieces)
        for piece in pieces:
            if isinstance(piece, TokensPiece):
                tokens.append((position, piece.tokens))
                position += len(piece.tokens)
            else:
                pictures.append(ImageRows(position, piece.rows))
                position += len(piece.rows)
        if position != image.start + image.count:
            raise RuntimeError(f"an image takes {position - image.start} positions, {image.count} were counted")
