"""The seats that a daemon uses, by number, and what follows from them for the next one: pure bookkeeping."""

from collections import deque

from msgspec import Struct, structs

from car_base.ipc.placing import Node, Place, Placed
from car_daemon.engines.link import NoPlace
from car_daemon.models.settings import Spread

# A cluster goes on offering a node for about as long after it was cut off.
AVOID_S = 60.0
# So many losses within AVOID_S are a mass loss: placements follow each other at this distance then.
MASS_LOSS = 4
MASS_LOSS_APART_S = 1.0


class Avoided(Struct, frozen=True):
    """Until when a node gets no engine that another node could take, and why."""

    until: float
    why: str


class Seats:
    """Open seats, avoided nodes and recent losses; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, Placed]] = {}  # each with its model
        self._avoided: dict[str, Avoided] = {}  # by node
        self._losses: deque[float] = deque(maxlen=MASS_LOSS)
        self._next_turn = 0.0

    def __repr__(self) -> str:
        return f"<Seats {len(self._open)} open, avoids {sorted(self._avoided)}>"

    @property
    def numbers(self) -> list[int]:
        """The numbers of the open seats."""
        return sorted(self._open)

    def restrict(self, order: Place, spread: Spread, now: float) -> Place:
        """Return an order with the nodes and the file that the seats in use leave it."""
        mine = [seat for model, seat in self._open.values() if model == order.model]
        of_model = {seat.node for seat in mine}
        avoid = set(self.avoided(now))
        used = {seat.node for _, seat in self._open.values()} - avoid
        return structs.replace(
            order,
            spread=bool(spread),
            avoid=sorted(avoid),
            apart=sorted(of_model) if spread == "strict" else [],
            first=[] if spread else sorted(used),
            last=sorted(of_model) if spread is True else [],
            content=mine[0].content if mine else order.content,
        )

    def open(self, model: str, seat: Placed, now: float) -> None:
        """Count a seat; raises NoPlace if its file is another one than that of the model's other engines."""
        others = [other for name, other in self._open.values() if name == model and other.content != seat.content]
        if others:
            why = f"{seat.path} on {seat.address} is not the file that {others[0].address} has: copy it there"
            self.avoid(seat.node, why, now)
            raise NoPlace(why)
        self._open[seat.number] = model, seat

    def close(self, number: int, now: float, *, lost: bool = False) -> None:
        """Count a seat no more; `lost` is true if its connection ended without its engine's end."""
        if self._open.pop(number, None) is not None and lost:
            self._losses.append(now)

    def avoid(self, node: str, why: str, now: float) -> None:
        """Prefer other nodes to one for a minute."""
        self._avoided[node] = Avoided(now + AVOID_S, why)

    def avoided(self, now: float) -> dict[str, Avoided]:
        """Return the nodes that are avoided now."""
        self._avoided = {node: each for node, each in self._avoided.items() if each.until > now}
        return self._avoided

    def engines_on(self, node: Node) -> int:
        """Return the number of engines on a node."""
        return sum(seat.node == node.node for _, seat in self._open.values())

    def pause_s(self, now: float) -> float:
        """Return the seconds until the next placement may begin, and count it: none but after a mass loss."""
        if len(self._losses) < MASS_LOSS or now - self._losses[0] > AVOID_S:
            return 0.0
        turn = max(now, self._next_turn)
        self._next_turn = turn + MASS_LOSS_APART_S
        return turn - now
