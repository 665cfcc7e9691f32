"""Requests in sequences: each starts to run when it gets one, and stops when it is separated from it."""

from car_base.ipc.types import AdapterSet
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.sequences import Grid, Sequence
from car_engine.images.awaited_images import AwaitedImages
from car_engine.runner.generation import Generation
from car_engine.runner.sampling_turns import SamplingTurns


class Seats:
    """The generation of every busy sequence, and the sequence of every running request."""

    def __init__(self, cache: PrefixCache, sampling: SamplingTurns, images: AwaitedImages) -> None:
        self._cache = cache
        self._sampling = sampling
        self._images = images
        self.generations: dict[int, Generation] = {}  # by sequence number
        self.sequences: dict[int, Sequence] = {}  # by request key

    def take(
        self, generation: Generation, prompt: list[int], namespace: str | None, adapters: AdapterSet
    ) -> Sequence | None:
        """Start a prompt in an idle sequence; None if there is none."""
        grid = Grid(generation.prompt_tokens) if generation.reproducible else None
        sequence = self._cache.start(prompt, namespace, adapters, grid)
        if sequence is not None:
            self.generations[sequence.number] = generation
            self.sequences[generation.key] = sequence
            self._sampling.join(sequence, generation.sampler)
        return sequence

    def leave(self, sequence: Sequence) -> tuple[Generation, int]:
        """Separate a request from its sequence; return it, and its cached cells that were not reported yet."""
        generation = self.generations.pop(sequence.number)
        del self.sequences[generation.key]
        self._images.cancel(generation.key)
        self._sampling.leave(sequence)
        return generation, count_cached(sequence, generation)


def count_cached(sequence: Sequence, generation: Generation) -> int:
    """Return the cells that the request did not have to compute since the last call."""
    cached, sequence.cached = sequence.cached, 0
    generation.cached_tokens += cached
    return cached
