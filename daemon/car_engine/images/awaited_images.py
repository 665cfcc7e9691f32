"""The images of running requests that no sequence has yet."""

from collections.abc import Callable

from car_engine.batching.sequences import Sequence
from car_engine.images.ahead import RowsAhead
from car_engine.images.encoder import Encode, Encoded


class AwaitedImages:
    """The images of running requests that are being encoded; their sequences wait for them."""

    def __init__(self, encode: Callable[[Encode], None], ahead: RowsAhead) -> None:
        self.ahead = ahead
        self._encode = encode
        self._jobs: dict[int, Encode] = {}  # by request key

    def __repr__(self) -> str:
        return f"<AwaitedImages requests={len(self._jobs)} {self.ahead!r}>"

    def request(self, job: Encode, sequence: Sequence, rows: Encoded | None = None) -> None:
        """Put encoded images into a prompt, or have them encoded; unless the sequence has them or their cells."""
        if sequence.images.count or all(image.start + image.count <= sequence.cells for image in job.images):
            return
        sequence.images.awaited = True
        if rows is not None:
            self.deliver(rows, sequence)
            return
        self._jobs[job.key] = job
        self._encode(job)

    def cancel(self, key: int) -> None:
        """Spare the projector the images of a request that no longer needs them."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.wanted = False

    def deliver(self, encoded: Encoded, sequence: Sequence) -> None:
        """Put a request's images into its sequence's prompt."""
        self.cancel(encoded.key)
        sequence.images.set(encoded.pictures, encoded.tokens)
        sequence.prompt = sequence.images.put_into(sequence.prompt)
