"""Images into rows, in a thread of their own because a projector takes seconds."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NoReturn, Protocol

from car_daemon.engine.batching.prompt_images import ImageRows
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.images.image_file import ImageError
from car_daemon.engine.images.piece_cache import Piece, PieceCache, TokensPiece
from car_daemon.ipc.frames import Fault, ImageSlot
from car_daemon.ipc.inbox import Inbox


@dataclass(slots=True)
class Encode:
    """The images of one request; the loop clears `wanted` when the request no longer needs them."""

    key: int
    owner: int  # the client's uid
    images: list[ImageSlot]
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request's images as rows and the tokens around them, by position; or the fault."""

    key: int
    pictures: list[ImageRows]
    tokens: list[tuple[int, list[int]]]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A job, its images that are left, and what those before became."""

    job: Encode
    images: deque[ImageSlot]
    encoded: Encoded


class Projector(Protocol):
    """Pixels into pieces of a prompt."""

    def encode(self, pixels: Any) -> list[Piece]:
        """Return the pieces of an image in order; raises ImageError, and RuntimeError where the projector fails."""
        ...


class Encoder:
    """Decodes and encodes images for the loop, the same image of the same owner once."""

    def __init__(
        self,
        decode: Callable[[bytes], Any],
        projector: Projector,
        inbox: Inbox[Encode],
        report: Callable[[Encoded], None],
    ) -> None:
        self._decode = decode
        self._projector = projector
        self._cache = PieceCache()
        self._inbox = inbox
        self._report = report
        self._begun: deque[_Begun] = deque()  # the next to advance first

    @property
    def busy(self) -> bool:
        """True while a job has images left."""
        return bool(self._begun)

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self._inbox.receive(wait=not self.busy))

    def turn(self, jobs: list[Encode]) -> None:
        """Add jobs, then encode one image of the next job, so that a job with many does not keep the others waiting."""
        self._begun.extend(_Begun(job, deque(job.images), Encoded(job.key, [], [])) for job in jobs)
        begun = self._begun.popleft()
        encoded = self._advance(begun) if begun.job.wanted else None
        if not begun.job.wanted:
            return
        if encoded is None:
            self._begun.append(begun)
        else:
            self._report(encoded)

    def _advance(self, begun: _Begun) -> Encoded | None:
        """Encode one image of a job; return its result with the last one, or with the first that fails."""
        job, encoded = begun.job, begun.encoded
        try:
            self._place(job.owner, begun.images.popleft(), encoded.pictures, encoded.tokens)
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
            pieces = self._projector.encode(self._decode(image.data))
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


class AwaitedImages:
    """The images of running requests that are being encoded; their sequences wait for them."""

    def __init__(self, encode: Callable[[Encode], None]) -> None:
        self._encode = encode
        self._jobs: dict[int, Encode] = {}  # by request key

    def __repr__(self) -> str:
        return f"<AwaitedImages requests={len(self._jobs)}>"

    def request(self, key: int, owner: int, images: list[ImageSlot], sequence: Sequence) -> None:
        """Have a request's images encoded, unless all of them are in the cells of its sequence."""
        if any(image.start + image.count > sequence.cells for image in images):
            sequence.images.awaited = True
            job = self._jobs[key] = Encode(key, owner, images)
            self._encode(job)

    def cancel(self, key: int) -> None:
        """Spare the projector the images of a request that no longer needs them."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.wanted = False

    def deliver(self, encoded: Encoded, sequence: Sequence) -> None:
        """Put a request's images into its sequence's prompt."""
        self.cancel(encoded.key)
        prompt = list(sequence.prompt)
        for start, tokens in encoded.tokens:
            prompt[start : start + len(tokens)] = tokens
        sequence.prompt = prompt
        sequence.images.set(encoded.pictures)
