"""Positions and waiting times: the measured service rate, and the reports to clients."""

from collections.abc import Iterator
from itertools import islice

from car_daemon.scheduler.actions import Progress
from car_daemon.scheduler.backlog import Backlog
from car_daemon.scheduler.fair_queue.lane import Target
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.waiting import Waiting

# A new sample's part in the moving mean.
_WEIGHT = 0.2
# Places that are followed closely, and from afar; with the seconds between two looks.
_NEAR, _NEAR_S = 64, 0.1
_FAR, _FAR_S = 1024, 1.0


class ServiceRate:
    """Moving mean of the seconds from a request's first lease to its end."""

    def __init__(self) -> None:
        self._mean: float | None = None  # None before the first request ended

    def __repr__(self) -> str:
        return f"<ServiceRate {self._mean} s>"

    def observe(self, seconds: float) -> None:
        """Add a sample."""
        self._mean = seconds if self._mean is None else self._mean + _WEIGHT * (seconds - self._mean)

    def wait(self, position: int, capacity: int) -> float | None:
        """Return the seconds until the request at a position (0 is next) may start; None before the first sample."""
        return None if self._mean is None else self._mean * (position + 1) / capacity


def first_place(request: Request, backlog: Backlog) -> list[Progress]:
    """Return the position of a new request that is held back, or that no engine can prepare yet."""
    if request.state is not State.ACCEPTED:
        return []
    request.position = len(backlog) + len(backlog.held_back) - 1
    return [Progress(request, request.position, None)]


class Positions:
    """Reports to the requests whose `progress` is set, when their place changed.

    Up to 64 waiting requests of a target are followed at every event. Of more the first 64 are followed ten times a
    second and the first 1024 once a second, because clients cannot tell and every look costs.
    """

    def __init__(self, waiting: Waiting, rate: ServiceRate, gate: Gate) -> None:
        self._waiting = waiting
        self._rate = rate
        self._gate = gate
        self._near: dict[Target, float] = {}  # when the first were looked at last
        self._far: dict[Target, float] = {}  # when the others were

    def __repr__(self) -> str:
        return f"<Positions of {self._waiting.watchers.total()} requests>"

    def plan(self, now: float) -> list[Progress]:
        """Return the reports about the lanes that changed."""
        watchers = self._waiting.watchers
        if not watchers:
            return []
        targets = {lane.target: None for lane in self._waiting.touched if watchers[lane.target]}
        return [report for target in targets for report in self._reports(target, self._window(target, now))]

    def _window(self, target: Target, now: float) -> int:
        """Return the number of places to look at now."""
        if self._waiting.length(target) <= _NEAR:
            return _NEAR
        if now - self._far.get(target, -_FAR_S) >= _FAR_S:
            self._far[target] = self._near[target] = now
            return _FAR
        if now - self._near.get(target, -_NEAR_S) >= _NEAR_S:
            self._near[target] = now
            return _NEAR
        return 0

    def _reports(self, target: Target, window: int) -> Iterator[Progress]:
        for position, request in enumerate(islice(self._waiting.order(target), window)):
            if request.spec.progress and request.position != position and request.state is State.WAITING:
                request.position = position
                wait = self._rate.wait(position, self._gate.capacity(request.model))
                yield Progress(request, position, None if wait is None else round(wait * 1000))
