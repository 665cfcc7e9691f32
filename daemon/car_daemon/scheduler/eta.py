"""Positions and waiting times: the measured service rate, and the reports to clients."""

from collections.abc import Iterator
from itertools import islice

from car_daemon.scheduler.actions import Progress, Remind
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
    second and the first 1024 once a second, because clients cannot tell and every look costs. A look that comes too
    early is made up for at its time, if no event comes then.
    """

    def __init__(self, waiting: Waiting, rate: ServiceRate, gate: Gate) -> None:
        self._waiting = waiting
        self._rate = rate
        self._gate = gate
        self._near: dict[Target, float] = {}  # when the first were looked at last
        self._far: dict[Target, float] = {}  # when the others were
        self.owed: dict[Target, float] = {}  # when to look where a look came too early

    def __repr__(self) -> str:
        return f"<Positions of {self._waiting.watchers.total()} requests>"

    @property
    def next_look(self) -> float | None:
        """The time of the next look that is owed."""
        return min(self.owed.values(), default=None)

    def is_due(self, now: float) -> bool:
        """Return True if one of the looks that are owed is to be made now."""
        return min(self.owed.values()) <= now

    def plan(self, now: float) -> list[Progress | Remind]:
        """Return the reports about the lanes that changed, and a reminder of the looks that are owed since now."""
        watchers = self._waiting.watchers
        owed = set(self.owed)
        for target in [target for target in owed if not watchers[target]]:
            del self.owed[target]
        if not watchers:
            return []
        due = [target for target, time in self.owed.items() if time <= now]
        touched = [lane.target for lane in self._waiting.touched if watchers[lane.target]]
        reports: list[Progress | Remind] = []
        for target in dict.fromkeys(due + touched):
            reports += self._reports(target, self._window(target, now))
        if due or self.owed.keys() - owed:
            reports += [Remind(time) for time in self.owed.values()]
        return reports

    def _window(self, target: Target, now: float) -> int:
        """Return the number of places to look at now."""
        self.owed.pop(target, None)
        if self._waiting.length(target) <= _NEAR:
            return _NEAR
        far, near = self._far.get(target, -_FAR_S) + _FAR_S, self._near.get(target, -_NEAR_S) + _NEAR_S
        if now >= far:
            self._far[target] = self._near[target] = now
            return _FAR
        if now >= near:
            self._near[target], self.owed[target] = now, far
            return _NEAR
        self.owed[target] = near
        return 0

    def _reports(self, target: Target, window: int) -> Iterator[Progress]:
        for position, request in enumerate(islice(self._waiting.order(target), window)):
            if request.spec.progress and request.position != position and request.state is State.WAITING:
                request.position = position
                wait = self._rate.wait(position, self._gate.capacity(request.model))
                yield Progress(request, position, None if wait is None else round(wait * 1000))
