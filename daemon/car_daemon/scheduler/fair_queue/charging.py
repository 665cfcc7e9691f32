"""Charges: tokens of running requests, charged to label, tenant, process and user."""

from car_daemon.scheduler.fair_queue.tree import Account
from car_daemon.scheduler.fair_queue.turns import ADVANCE
from car_daemon.scheduler.request import Request


class Charging:
    """The accounts of all users, and what running requests are charged."""

    def __init__(self) -> None:
        self.root = Account(None, "")
        self._weights: dict[int, float] = {}  # by uid; 1 for the others

    def __repr__(self) -> str:
        return f"<Charging {len(self.root.children)} users>"

    def weight(self, uid: int) -> float:
        """Return a user's weight."""
        return self._weights.get(uid, 1.0)

    def set_weights(self, weights: dict[int, float]) -> None:
        """Divide service by other weights from now on."""
        self._weights = dict(weights)
        for name, account in self.root.children.items():
            account.weight = self.weight(int(name))

    def started(self, request: Request, prompt_share: float) -> None:
        """Charge the prompt and the advance at a request's first lease; a prompt token costs `prompt_share` tokens."""
        request.prompt_share = prompt_share
        request.charged = self.cost(request)
        assert request.account is not None
        request.account.charge(request.charged)

    def cost(self, request: Request) -> float:
        """Return what a lease is charged when it begins."""
        return request.prompt.tokens * request.prompt_share + ADVANCE

    def advanced(self, request: Request, cached: int) -> None:
        """Charge what exceeds the advance; refund prompt tokens found in the cache."""
        if request.account is None:
            return
        if cached:
            refund = min(cached * request.prompt_share, request.charged)
            request.cached += cached
            request.charged -= refund
            request.account.refund(refund, ADVANCE)
        used = self._used(request)
        if used > request.charged:
            request.account.charge(used - request.charged)
            request.charged = used

    def settle(self, request: Request) -> None:
        """Refund the unused part of what was charged."""
        unused = request.charged - self._used(request)
        if unused > 0 and request.account is not None:
            request.account.refund(unused, ADVANCE)
        request.charged = 0.0

    def _used(self, request: Request) -> float:
        return max(0, request.prompt_done - request.cached) * request.prompt_share + request.produced
