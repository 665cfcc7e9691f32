"""The places of one user in the queue, and its requests that are held back outside."""

from collections import Counter
from collections.abc import Iterable

from car_daemon.scheduler.fair_queue.lazy_heap import LazyHeap
from car_daemon.scheduler.request import RANKS, Request


class HeldRequests:
    """A user's requests that are held back; `places` are its counted ones by model."""

    def __init__(self, places: Counter[str]) -> None:
        self._places = places
        self.count = 0
        self.bytes = 0
        self.by_model: Counter[str] = Counter()
        self._entering: LazyHeap[int, str] = LazyHeap()  # models, the one with fewest places first
        self._heaviest: LazyHeap[int, int] = LazyHeap()  # processes by bytes, the most first
        self._process_bytes: Counter[int] = Counter()
        self._keys: dict[int, LazyHeap[int, int]] = {}  # by process, the newest first

    def add(self, request: Request) -> None:
        """Count a request that is held back."""
        process = request.spec.process
        self.count += 1
        self.by_model[request.model] += 1
        self._entering.set(request.model, self._places[request.model])
        self._add_bytes(process, request.spec.size)
        self._keys.setdefault(process, LazyHeap()).set(request.key, -request.key)

    def drop(self, request: Request) -> None:
        """Forget a request that is held back."""
        process, model = request.spec.process, request.model
        self.count -= 1
        self.by_model[model] -= 1
        if not self.by_model[model]:
            del self.by_model[model]
            self._entering.discard(model)
        self._add_bytes(process, -request.spec.size)
        keys = self._keys[process]
        keys.discard(request.key)
        if not keys:
            del self._keys[process]

    def places_changed(self, model: str) -> None:
        """Take the changed count of a model's places into account."""
        if model in self._entering:
            self._entering.set(model, self._places[model])

    def next_model(self) -> str:
        """Return the model whose request enters first: the one with fewest places."""
        model = self._entering.first()
        assert model is not None
        return model

    def heaviest(self) -> int:
        """Return the newest request of the process that has most bytes held back."""
        process = self._heaviest.first()
        assert process is not None
        key = self._keys[process].first()
        assert key is not None
        return key

    def _add_bytes(self, process: int, size: int) -> None:
        self.bytes += size
        self._process_bytes[process] += size
        if self._process_bytes[process]:
            self._heaviest.set(process, -self._process_bytes[process])
        else:
            del self._process_bytes[process]
            self._heaviest.discard(process)


class Places:
    """A user's counted requests by model and class, and its held-back ones."""

    def __init__(self, uid: int, weight: float) -> None:
        self.uid = uid
        self.weight = weight
        self.count = 0  # requests in the queue
        self.by_model: Counter[str] = Counter()  # requests in the queue
        self.held = HeldRequests(self.by_model)
        self._newest: dict[tuple[str, int], LazyHeap[int, int]] = {}  # keys in the queue, by model and class
        self._oldest: dict[int, LazyHeap[int, int]] = {}  # keys in the queue, by class
        self._largest: LazyHeap[int, str] = LazyHeap()  # models, the one with most places first

    def __repr__(self) -> str:
        return f"<Places of {self.uid}: {self.count}, {self.held.count} held back>"

    @property
    def load(self) -> float:
        """Places divided by the weight."""
        return self.count / self.weight

    def enter(self, request: Request) -> None:
        """Count a request."""
        self._add(request.model, 1)
        if request.leased_at is None:  # running work that came back from a dead engine keeps its place
            rank = RANKS[request.spec.priority]
            self._newest.setdefault((request.model, rank), LazyHeap()).set(request.key, -request.key)
            self._oldest.setdefault(rank, LazyHeap()).set(request.key, request.key)

    def leave(self, request: Request) -> None:
        """Forget a counted request."""
        self._add(request.model, -1)
        rank = RANKS[request.spec.priority]
        if (newest := self._newest.get((request.model, rank))) is not None:
            newest.discard(request.key)
            self._oldest[rank].discard(request.key)
            if not newest:
                del self._newest[request.model, rank]

    def newest(self, least_rank: int, spared: str | None = None) -> int | None:
        """Return the newest request of the model with most places, of a class that is not above; None if none is left.

        The model `spared` gives up nothing, and the others with one place nothing to it.
        """
        model = self._largest.first()
        if model is None or (spared is not None and (model == spared or self.by_model[model] < 2)):
            return None
        for rank in range(max(RANKS.values()), least_rank - 1, -1):
            newest = self._newest.get((model, rank))
            if newest is not None and (key := newest.first()) is not None:
                return key
        return None

    def oldest(self, ranks: Iterable[int]) -> int | None:
        """Return the oldest request of some classes; None where there is none."""
        keys = [heap.first() for rank in ranks if (heap := self._oldest.get(rank)) is not None]
        return min((key for key in keys if key is not None), default=None)

    def _add(self, model: str, change: int) -> None:
        self.count += change
        self.by_model[model] += change
        count = self.by_model[model]
        if count:
            self._largest.set(model, -count)
        else:
            del self.by_model[model]
            self._largest.discard(model)
        self.held.places_changed(model)
