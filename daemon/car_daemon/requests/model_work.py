"""Open work of each model, as the model manager needs it to load, evict and unload."""

from collections.abc import Callable

from car_daemon.models.entry import ModelEntry
from car_daemon.requests.action_runner import ActionRunner
from car_daemon.requests.tokenization import Tokenization
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler


class ModelWork:
    """Requests and tokenizations of a model that have no answer yet."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ActionRunner,
        tokenization: Tokenization,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._tokenization = tokenization
        self._clock = clock

    def busy(self, model: str) -> bool:
        """Return whether a model has open work."""
        return model in self._scheduler.table.models or self._tokenization.jobs.busy(model)

    def engaged(self, model: str) -> bool:
        """Return whether a model's engine has work, or prepared a request that will run."""
        requests = self._scheduler.table.models.get(model)
        engaged = requests is not None and len(requests) > requests.states[State.ACCEPTED]
        return engaged or self._tokenization.jobs.engaged(model)

    def close(self, model: str) -> None:
        """Stop sending work to a model's engines: later work waits for another engine."""
        self._scheduler.gate.close(model)
        self._tokenization.engines.close(model)

    def model_failed(self, entry: ModelEntry) -> None:
        """Refuse all work of a model that cannot be served."""
        data = {"why": entry.reason, **entry.shortage}
        self._tokenization.model_failed(entry.name, data)
        self._runner.do(self._scheduler.model_failed(entry.name, self._clock(), data))

    def refuse_other_devices(self, entry: ModelEntry) -> None:
        """Refuse requests for a device on which the model has no replica."""
        lacks = {"lacks": "device"}
        self._runner.do(self._scheduler.model_failed(entry.name, self._clock(), lacks, left=entry.replicas.devices))
