"""The requests without a terminal answer, found by key, model, engine and `supersede` key."""

from collections import Counter
from collections.abc import Collection

from car_daemon.host.devices import is_on
from car_daemon.scheduler.fair_queue.lazy_heap import LazyHeap
from car_daemon.scheduler.request import Request, State

QUEUED = (State.ACCEPTED, State.PREPARING, State.WAITING)


class ModelRequests:
    """The requests of one model, by key and by the device that they name, and their number in each state."""

    def __init__(self) -> None:
        self.states: Counter[State] = Counter()
        self.devices: dict[str | None, dict[int, Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.devices.values()))

    def __repr__(self) -> str:
        return f"<ModelRequests {len(self)}>"

    @property
    def queued(self) -> int:
        """The requests without a lease that had none yet, or lost it with an engine."""
        return sum(self.states[state] for state in QUEUED)


class RequestTable:
    """Owner of the open requests and of their indexes."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}  # by key
        self.models: dict[str, ModelRequests] = {}  # by name; only those that have requests
        self._engines: dict[int, dict[int, Request]] = {}  # that prepare, run or park them
        self._supersede: dict[tuple[int, str], dict[int, Request]] = {}
        self._limits: LazyHeap[float, int] = LazyHeap()  # keys by the time at which they expire

    def __repr__(self) -> str:
        return f"<RequestTable {len(self.requests)} requests of {len(self.models)} models>"

    def add(self, request: Request) -> None:
        """Add a new request."""
        self.requests[request.key] = request
        model = self.models.get(request.model)
        if model is None:
            model = self.models[request.model] = ModelRequests()
        request.tally = model.states
        model.states[request.state] += 1
        model.devices.setdefault(request.spec.device, {})[request.key] = request
        if request.spec.supersede is not None:
            self._supersede.setdefault(request.spec.supersede, {})[request.key] = request
        if request.limited:
            self.limit(request)

    def remove(self, request: Request) -> None:
        """Remove a request that ended."""
        key, model = request.key, self.models[request.model]
        del self.requests[key]
        self.assign(request, None)
        if request.limited:
            self._limits.discard(key)
        request.tally = None
        model.states[request.state] -= 1
        same_device = model.devices[request.spec.device]
        del same_device[key]
        if not same_device:
            del model.devices[request.spec.device]
            if not model.devices:
                del self.models[request.model]
        if (supersede := request.spec.supersede) is not None:
            del self._supersede[supersede][key]
            if not self._supersede[supersede]:
                del self._supersede[supersede]

    def assign(self, request: Request, engine: int | None) -> None:
        """Note the engine that prepares, runs or parks a request."""
        if request.engine is not None:
            del self._engines[request.engine][request.key]
            if not self._engines[request.engine]:
                del self._engines[request.engine]
        request.engine = engine
        if engine is not None:
            self._engines.setdefault(engine, {})[request.key] = request

    def limit(self, request: Request) -> None:
        """Note the time at which a request expires, which changes with its first lease and its halt."""
        expires_at = request.expires_at
        if expires_at is None:
            self._limits.discard(request.key)
        else:
            self._limits.set(request.key, expires_at)

    def next_limit(self) -> float | None:
        """Return the time at which the next request expires."""
        return self._limits.least()

    def expired(self, now: float) -> list[Request]:
        """Return the requests that expire by now, the first first; each is to be ended or given another limit."""
        due = []
        while (limit := self._limits.least()) is not None and limit <= now:
            key = self._limits.pop()
            assert key is not None
            due.append(self.requests[key])
        return due

    def of_engine(self, engine: int) -> list[Request]:
        """Return the requests that an engine prepares, runs or parks, in the order of their arrival."""
        return [request for _, request in sorted(self._engines.get(engine, {}).items())]

    def unserved(self, model: str, left: Collection[str]) -> list[Request]:
        """Return the requests of a model that none of the devices that are `left` can run."""
        requests = self.models.get(model)
        devices = {} if requests is None else requests.devices
        lost = [wanted for wanted in devices if not any(is_on(device, wanted) for device in left)]
        return [devices[device][key] for device in lost for key in devices[device]]

    def older(self, request: Request) -> list[Request]:
        """Return the older requests of a request's `supersede` key; those for the same prompt are as old as it is."""
        if request.spec.supersede is None:
            return []
        same = self._supersede.get(request.spec.supersede, {})
        first = request.key if request.spec.group is None else request.spec.group
        return [each for each in same.values() if each.key < first]
