"""Why the cluster has no place: no connection, or no node that could take an engine now, in words: pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from car_base.ipc.labels import LabelExpression
from car_base.ipc.placing import Place


class NotConnected(Exception):
    """There is no connection to the cluster; the message says why and what to do."""


class NoNode(Exception):
    """The cluster has no place; `node` is the node that refused the engine, None if none did."""

    def __init__(self, why: str, node: str | None = None) -> None:
        super().__init__(why)
        self.node = node


class NodeFacts(Struct, frozen=True):
    """A node by Ray's id, with its address, its labels, and all of its resources, in use or not."""

    node: str
    address: str
    alive: bool
    labels: Mapping[str, str]
    resources: Mapping[str, float]


def needs_of(order: Place) -> dict[str, float]:
    """Return the amounts that an engine takes of a node, by Ray's names."""
    needs = {"CPU": order.cpus, "GPU": order.gpus, "memory": float(order.memory_bytes), **order.resources}
    return {name: amount for name, amount in needs.items() if amount}


def present(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes in one order: the nodes alive, and a dead node of each address that has none alive.

    Ray lists a thousand dead nodes, and a machine that comes back is another node.
    """
    alive = [node for node in nodes if node.alive]
    dead = {node.address: node for node in nodes if not node.alive}
    gone = [node for address, node in dead.items() if all(other.address != address for other in alive)]
    return sorted([*alive, *gone], key=lambda node: node.node)


def relaxed(order: Place, nodes: Sequence[NodeFacts]) -> Place:
    """Return an order without nodes to avoid, if it avoids every node that could take it.

    Such a node may be back any moment, and there is no other to wait for.
    """
    could = [node for node in _labelled(order, nodes) if node.node not in order.apart]
    is_stuck = all(node.node in order.avoid for node in could)
    return structs.replace(order, avoid=[]) if is_stuck else order


def shortage(order: Place, nodes: Sequence[NodeFacts]) -> str:
    """Return why no node takes an engine now: what it lacks, or that all which have it are in use or avoided."""
    alive = [node for node in nodes if node.alive]
    if not alive:
        return "no node of the cluster is alive"
    needs = needs_of(order)
    fit = [node for node in alive if _has(node, needs)]
    if not fit:
        return f"no node has {_text(needs)}: the largest has {_text(_most(alive, needs))}"
    labelled = _labelled(order, fit)
    if not labelled:
        wanted = ", ".join(f"{name}={value}" for name, value in order.labels.items())
        return f"no node with {_text(needs)} has the labels {wanted}: start one with --labels"
    alone = [node for node in labelled if node.node not in order.apart]
    if not alone:
        return f'every node with {_text(needs)} has an engine of this model already, and spread = "strict" allows one'
    free = [node for node in alone if node.node not in order.avoid]
    if not free:
        return f"every node with {_text(needs)} was lost, or refused an engine, just now: {_addresses(alone)}"
    return f"no node has {_text(needs)} free now, which are in use on {_addresses(free)}"


def _has(node: NodeFacts, needs: Mapping[str, float]) -> bool:
    return all(node.resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _labelled(order: Place, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes alive that have all that an order needs, in use or not."""
    labels = {name: LabelExpression.parse(value) for name, value in order.labels.items()}
    fit = [node for node in nodes if node.alive and _has(node, needs_of(order))]
    return [node for node in fit if all(label.takes(node.labels.get(name)) for name, label in labels.items())]


def _most(nodes: Sequence[NodeFacts], needs: Mapping[str, float]) -> dict[str, float]:
    return {name: max(node.resources.get(name, 0.0) for node in nodes) for name in needs}


def _text(amounts: Mapping[str, float]) -> str:
    """Return amounts as `8 CPU and 1 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def _addresses(nodes: Sequence[NodeFacts]) -> str:
    few = [node.address for node in nodes[:3]]
    more = len(nodes) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")
