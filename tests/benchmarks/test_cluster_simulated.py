"""The simulated cluster: what holds for every seed, and the figures that a gate must not lose."""

import subprocess
import sys
from functools import cache

import pytest

from benchmarks import cluster_simulated
from benchmarks.cluster_simulated import CPU, GPU, Cost, Figures, Preset, nodes_of

# Nodes fail every three minutes, so that a short run has failures.
SMALL = Preset(requests=600, seconds=40.0, clients=400, node_hours=0.05)


@cache
def simulated(engines: int, seed: int) -> tuple[Figures, Cost]:
    return cluster_simulated.simulated(engines, SMALL, seed)


@pytest.mark.parametrize("engines", [1, 10, 25])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_is_lost_and_no_engine_runs_more_than_it_declared(engines: int, seed: int) -> None:
    figures, _ = simulated(engines, seed)
    assert (figures.lost, figures.broken) == (0, {})
    assert sum(figures.ends.values()) == figures.requests > 700


def test_nodes_fail_and_every_request_has_its_one_answer() -> None:
    figures, _ = simulated(25, 1)
    assert figures.failures > 0
    assert set(figures.ends) <= {"completed", "cancelled", "engine_lost"}


def test_urgent_requests_do_not_wait_for_the_work_of_clients_that_always_have_some() -> None:
    figures, _ = simulated(25, 1)
    assert figures.waits.urgent.p50 < 0.2
    assert figures.waits.urgent.p95 < figures.waits.throughput.p95 / 5


@pytest.mark.parametrize("seed", [1, 2])
def test_users_that_always_have_work_are_served_by_their_weights(seed: int) -> None:
    assert simulated(25, seed)[0].jain > 0.85


def test_the_same_seed_gives_the_same_figures_in_another_process() -> None:
    program = f"from benchmarks.cluster_simulated import *; print(simulated(10, {SMALL!r}, 2)[0])"
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == repr(simulated(10, 2)[0])
    assert simulated(10, 1)[0] != simulated(10, 2)[0]


@pytest.mark.parametrize("engines", [1, 7, 10, 100, 1000])
def test_nodes_have_as_many_engines_as_were_wanted(engines: int) -> None:
    assert sum(len(node.kinds) for node in nodes_of(engines)) == engines


def test_an_engine_declares_more_tokens_a_second_with_every_sequence() -> None:
    for kind in (CPU, GPU):
        rates = kind.offer("n").rates
        assert list(rates) == sorted(rates)
        assert rates[-1] == kind.sequences * kind.tokens_per_s


def test_a_load_beyond_the_usable_part_of_a_core_takes_several_gates() -> None:
    assert Cost(100, 1000, 500, 0).gates == 1
    assert Cost(100, 1000, 1300, 0).gates == 3
