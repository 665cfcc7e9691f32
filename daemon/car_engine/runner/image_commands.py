"""Images of requests before and after their lease: encoded ahead, given to sequences, forgotten."""

from typing import NamedTuple

from car_base.ipc.frames import Fault, Forget
from car_base.ipc.packed import tokens_of
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.sequences import Sequence
from car_engine.images.ahead import EncodeAhead
from car_engine.images.awaited_images import AwaitedImages
from car_engine.images.encoder import Encoded
from car_engine.runner.seats import Seats


class FailedImages(NamedTuple):
    """A running request whose images could not be encoded."""

    sequence: Sequence
    fault: Fault


class ImageCommands:
    """Applies what is new about the images of requests."""

    def __init__(self, seats: Seats, cache: PrefixCache, images: AwaitedImages) -> None:
        self._seats = seats
        self._cache = cache
        self._images = images

    def apply(self, command: EncodeAhead | Encoded | Forget) -> FailedImages | None:
        """Apply a command; return the request that has to end by it."""
        match command:
            case EncodeAhead():
                self._encode_ahead(command)
            case Encoded():
                return self._add(command)
            case Forget(key):
                self._images.ahead.take(key)
        return None

    def _encode_ahead(self, ahead: EncodeAhead) -> None:
        """Have images encoded for a request without a lease, unless all of them are in cells that it may reuse."""
        prepared, prepare = ahead.prepared, ahead.prepare
        prompt = tokens_of(prepared.tokens)
        cells = self._cache.at_hand(prompt, prepare.namespace, prepare.params.adapters)
        self._images.ahead.add(ahead, cached=all(image.start + image.count <= cells for image in prepared.images))

    def _add(self, encoded: Encoded) -> FailedImages | None:
        """Give a running request its encoded images; keep them for a request without a lease."""
        sequence = self._seats.sequences.get(encoded.key)
        if sequence is None:
            self._images.ahead.deliver(encoded)
        if sequence is None or not sequence.images.awaited:
            return None
        if encoded.fault is not None:
            return FailedImages(sequence, encoded.fault)
        self._images.deliver(encoded, sequence)
        return None
