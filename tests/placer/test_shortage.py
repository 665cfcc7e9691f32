"""The words for what an engine needs and no node has."""

from collections.abc import Sequence

import pytest

from car_base.ipc.placing import Place
from car_placer.shortage import NodeFacts, needs_of, present, relaxed, shortage


def node(number: int, *, alive: bool = True, labels: dict[str, str] | None = None, **resources: float) -> NodeFacts:
    return NodeFacts(f"id{number}", f"10.0.0.{number}", alive, labels or {}, resources)


SMALL, LARGE = node(1, CPU=4.0), node(2, labels={"pool": "a"}, CPU=16.0, GPU=1.0)


def order(
    cpus: float = 1.0,
    gpus: float = 0.0,
    labels: dict[str, str] | None = None,
    avoid: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> Place:
    return Place(
        number=1,
        model="m",
        path="/m",
        cpus=cpus,
        gpus=gpus,
        labels=labels or {},
        avoid=list(avoid),
        apart=list(apart),
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "text"),
    [
        (order(), [], "no node of the cluster is alive"),
        (order(), [node(1, alive=False, CPU=8.0)], "no node of the cluster is alive"),
        (order(cpus=32), [SMALL, LARGE], "no node has 32 CPU: the largest has 16 CPU"),
        (order(cpus=8, gpus=2), [SMALL, LARGE], "no node has 8 CPU and 2 GPU: the largest has 16 CPU and 1 GPU"),
        (
            order(labels={"pool": "b"}),
            [SMALL, LARGE],
            "no node with 1 CPU has the labels pool=b: start one with --labels",
        ),
        (
            order(cpus=8, avoid=["id2"]),
            [SMALL, LARGE],
            "every node with 8 CPU was lost, or refused an engine, just now: 10.0.0.2",
        ),
        (
            order(cpus=8, apart=["id2"], avoid=["id2"]),
            [SMALL, LARGE],
            'every node with 8 CPU has an engine of this model already, and spread = "strict" allows one',
        ),
        (order(cpus=8), [SMALL, LARGE], "no node has 8 CPU free now, which are in use on 10.0.0.2"),
        (
            order(),
            [node(number, CPU=1.0) for number in range(1, 6)],
            "no node has 1 CPU free now, which are in use on 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more",
        ),
        (
            order(labels={"pool": "in(a, c)"}),
            [LARGE],
            "no node has 1 CPU free now, which are in use on 10.0.0.2",
        ),
        (
            order(labels={"pool": "in(b, c)"}),
            [LARGE],
            "no node with 1 CPU has the labels pool=in(b, c): start one with --labels",
        ),
    ],
)
def test_a_lack_has_both_numbers_or_the_nodes_that_have_it(asked: Place, nodes: list[NodeFacts], text: str) -> None:
    assert shortage(asked, nodes) == text


@pytest.mark.parametrize(
    ("value", "takes"),
    [("a", True), ("b", False), ("!a", False), ("!b", True), ("in(b, a)", True), ("in(b)", False), ("!in(a,b)", False)],
)
def test_a_label_s_value_may_be_an_expression_of_ray(value: str, takes: bool) -> None:
    none = "no node with 1 CPU has the labels"
    assert shortage(order(labels={"pool": value}), [LARGE]).startswith(none) is not takes
    assert shortage(order(labels={"pool": value}), [SMALL]).startswith(none) is not value.startswith("!")


@pytest.mark.parametrize(
    ("asked", "avoided"),
    [
        (order(avoid=["id1"]), ["id1"]),
        (order(avoid=["id1", "id2"]), []),
        (order(cpus=8, avoid=["id2"]), []),
        (order(labels={"pool": "in(a, b)"}, avoid=["id2"]), []),
        (order(apart=["id1"], avoid=["id2"]), []),
        (order(avoid=["id1", "id2", "a node that ended"]), []),
    ],
)
def test_nodes_are_avoided_as_long_as_another_could_take_the_engine(asked: Place, avoided: list[str]) -> None:
    ended = node(3, alive=False, CPU=64.0)
    assert relaxed(asked, [SMALL, LARGE, ended]).avoid == avoided


def test_an_engine_takes_only_what_it_needs() -> None:
    assert needs_of(order()) == {"CPU": 1.0}
    everything = Place(
        number=1, model="m", path="/m", cpus=2.0, gpus=0.5, memory_bytes=1 << 30, resources={"nvme": 1.0}
    )
    assert needs_of(everything) == {"CPU": 2.0, "GPU": 0.5, "memory": float(1 << 30), "nvme": 1.0}


def test_a_machine_is_listed_once_however_often_its_node_ended() -> None:
    def life(name: str, number: int, *, alive: bool) -> NodeFacts:
        return NodeFacts(name, f"10.0.0.{number}", alive, {}, {})

    ended = [life(f"{number}-{turn}", number, alive=False) for turn in range(3) for number in (1, 2)]
    alive = [life("1-now", 1, alive=True), life("1-beside", 1, alive=True)]
    assert [node.node for node in present([*ended, *alive])] == ["1-beside", "1-now", "2-2"]
