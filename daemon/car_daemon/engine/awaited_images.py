"""The images of running requests that are being encoded beside the loop."""

from collections.abc import Callable

from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.encoding import Encode, Encoded
from car_daemon.engine.frames import ImageSlot


class AwaitedImages:
    """Has images encoded, and gives them to the sequences that are blind until then."""

    def __init__(self, encode: Callable[[Encode], None]) -> None:
        self._encode = encode
        # Mutable state: what is being encoded, by request key.
        self._jobs: dict[int, Encode] = {}

    def ask(self, key: int, images: list[ImageSlot], sequence: Sequence) -> None:
        """Have the images of a request encoded that are not in the cells of its sequence already."""
        if any(image.start + image.count > sequence.cells for image in images):
            sequence.blind = True
            job = self._jobs[key] = Encode(key, images)
            self._encode(job)

    def drop(self, key: int) -> None:
        """Spare the projector images that nobody waits for any more."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.wanted = False

    def give(self, encoded: Encoded, sequence: Sequence) -> None:
        """Let a sequence see its images."""
        self.drop(encoded.key)
        prompt = list(sequence.prompt)
        for start, tokens in encoded.tokens:
            prompt[start : start + len(tokens)] = tokens
        sequence.prompt = prompt
        sequence.see(encoded.pictures)
