"""The scheduler's state, shared by the parts that apply events to it."""

from car_daemon.scheduler.actions import Decisions
from car_daemon.scheduler.backlog import Backlog, QueueBounds
from car_daemon.scheduler.eta import ServiceRate
from car_daemon.scheduler.fair_queue.charging import Charging
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.parking import Parkings
from car_daemon.scheduler.table import RequestTable
from car_daemon.scheduler.totals import Totals
from car_daemon.scheduler.waiting import Waiting


class Books:
    """Requests, leases, places, waiters, charges and parkings."""

    def __init__(self, gate: Gate, bounds: QueueBounds, age_after: float, decisions: Decisions) -> None:
        self.gate = gate
        self.decisions = decisions
        self.table = RequestTable()
        self.totals = Totals()
        self.rate = ServiceRate()
        self.charging = Charging()
        self.backlog = Backlog(bounds, self.charging)
        self.waiting = Waiting(self.charging, age_after)
        self.parkings = Parkings(self.waiting, gate, decisions)

    def __repr__(self) -> str:
        return f"<Books {self.totals!r}, {self.backlog!r}, {self.waiting!r}, {self.gate!r}>"
