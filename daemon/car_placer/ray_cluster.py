"""A Ray cluster as the placer's cluster: the only importer of Ray beside the check of its head."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayActorError, RayError

from car_base.ipc.labels import LabelExpression
from car_base.ipc.placing import Join, Node, Nodes, Place, Placed, Unplaced, Waiting, decode_from_seat
from car_placer.ray_head import checked
from car_placer.relay import new_pair
from car_placer.seat import Seat, SeatOrder, Where
from car_placer.shortage import NodeFacts, NoNode, NotConnected, needs_of, present, relaxed, shortage

NAMESPACE = "card"
_AT_ONCE_S = 2.0  # a placement that takes longer is reported as one that waits
_NO_HEAD = "Ray's head takes no order now: start it where it has ended"
_NODE_ID = "ray.io/node-id"
_IP = re.compile(r"\bip=([0-9A-Fa-f.:]+)")


class SeatActor(Seat):
    """A seat as an actor."""

    def where(self) -> Where:
        """Return the node that it is on."""
        version, schema = self.installed()
        return Where(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), version, schema)


class RayCluster:
    """The cluster that a daemon named; raises NotConnected."""

    def __init__(self, join: Join) -> None:
        self._join = join
        address = checked(join.address)
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="critical")
        except Exception as error:
            advice = "start Ray on this machine too: ray start --address=HEAD --num-cpus=0"
            raise NotConnected(f"cannot join the cluster at {address}: {_first_line(error)}; {advice}") from error
        self._sweep()

    def nodes(self) -> Nodes:
        """Return the nodes; may block."""
        found = [
            Node(each.node, each.address, each.alive, each.resources.get("CPU", 0.0), each.resources.get("GPU", 0.0))
            for each in present(_facts())
        ]
        return Nodes(ray=ray.__version__, nodes=found)

    async def open(self, order: Place, waits: Callable[[str], None]) -> Placed:
        """Return an open seat; a cancelled call leaves none. Raises NoNode."""
        # Ray itself waits a minute for a head that is gone.
        slow = asyncio.get_running_loop().call_later(_AT_ONCE_S, waits, _NO_HEAD)
        try:
            actor = await asyncio.to_thread(self._create, order)
        except RayError as error:
            raise NoNode(f"{_NO_HEAD} ({_first_line(error)})") from error
        finally:
            slow.cancel()
        try:
            where = await self._started(actor, order, waits)
            self._check_version(where)
            await actor.open.remote(msgspec.msgpack.encode(SeatOrder(order, where, new_pair())))
            return await self._outcome(actor, waits)
        except RayActorError as error:
            raise await asyncio.to_thread(_refusal, error) from error
        except BaseException:
            ray.kill(actor)
            raise

    def _create(self, order: Place) -> Any:
        """Return the handle of a new actor, which may have to wait for its resources."""
        needs = needs_of(order)
        return (
            ray.remote(SeatActor)
            .options(
                name=f"{self._prefix}{order.number}",
                namespace=NAMESPACE,
                # It outlives the placer; the supervisor alone starts engines again.
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                num_cpus=needs.pop("CPU", 0.0),
                num_gpus=needs.pop("GPU", 0.0),
                memory=needs.pop("memory", None),
                resources=needs,
                scheduling_strategy="SPREAD" if order.spread else "DEFAULT",
                **_selectors(relaxed(order, _facts())),
            )
            .remote()
        )

    @property
    def _prefix(self) -> str:
        return f"card:{self._join.daemon}:"

    async def _started(self, actor: Any, order: Place, waits: Callable[[str], None]) -> Where:
        """Return the node of an actor once it runs; raises NoNode."""
        where = asyncio.ensure_future(_awaited(actor.where.remote()))
        try:
            done, _ = await asyncio.wait([where], timeout=_AT_ONCE_S)
            if not done:
                waits(shortage(order, await asyncio.to_thread(_facts)))
                done, _ = await asyncio.wait([where], timeout=self._join.place_timeout_s - _AT_ONCE_S)
            if not done:
                raise NoNode(shortage(order, await asyncio.to_thread(_facts)))
            here: Where = where.result()
            return here
        finally:
            # Of an order that was taken back too, whose actor is killed then.
            where.cancel()

    def _check_version(self, where: Where) -> None:
        """Raise NoNode if another card is installed on a node: two versions never exchange frames."""
        advice = "install the same version on every machine of the cluster"
        if where.version != self._join.version:
            why = f"card {where.version} is installed there, {self._join.version} here: {advice}"
        elif where.schema != self._join.schema:
            why = f"card {where.version} is installed there too, of another build with other frames: {advice}"
        else:
            return
        raise NoNode(f"{where.address}: {why}", where.node)

    async def _outcome(self, actor: Any, waits: Callable[[str], None]) -> Placed:
        """Return the seat once its node checked the files; raises NoNode."""
        while True:
            if not (frame := await actor.outcome.remote()):
                continue
            match decode_from_seat(frame):
                case Placed() as placed:
                    return placed
                case Unplaced(why=why, node=node):
                    raise NoNode(why, node)
                case Waiting(why=why):
                    waits(why)

    def _sweep(self) -> None:
        """End the seats of an earlier placer that the daemon does not use."""
        used = {f"{self._prefix}{number}" for number in self._join.seats}
        for each in ray.util.list_named_actors():
            if each.startswith(self._prefix) and each not in used:
                # It may have ended meanwhile.
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(each, namespace=NAMESPACE))


async def _awaited(reference: Any) -> Any:
    return await reference


def _selectors(order: Place) -> dict[str, Any]:
    """Return the labels that a node must have, and the labels that it should have."""
    never = [*order.avoid, *order.apart]
    labels = {name: str(LabelExpression.parse(value)) for name, value in order.labels.items()}
    anywhere = labels | _nodes("!in", never)
    rather = _nodes("in", order.first) or _nodes("!in", [*never, *order.last] if order.last else [])
    if not rather:
        return {"label_selector": anywhere} if anywhere else {}
    return {"label_selector": labels | rather, "fallback_strategy": [{"label_selector": anywhere}]}


def _nodes(operator: str, nodes: Sequence[str]) -> dict[str, str]:
    """Return the selector of a list of nodes, which is empty for an empty one."""
    return {_NODE_ID: f"{operator}({','.join(nodes)})"} if nodes else {}


def _facts() -> list[NodeFacts]:
    return [
        NodeFacts(each["NodeID"], each["NodeManagerAddress"], each["Alive"], each["Labels"], each["Resources"])
        for each in ray.nodes()
    ]


def _refusal(error: Exception) -> NoNode:
    """Return why an actor died, with its node if the error has the address."""
    text = str(error)
    ip = _IP.search(text)
    node = next((each for each in _facts() if ip is not None and each.address == ip[1] and each.alive), None)
    where = "a node" if node is None else node.address
    if "No module named 'car_daemon" in text:
        why = "card is not installed there: pip install 'card-daemon[daemon,cluster]'"
    else:
        why = f"its seat died: {_first_line(error)}"
    return NoNode(f"{where}: {why}", None if node is None else node.node)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
