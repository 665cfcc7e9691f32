"""The rules of the interleavings on long, dense walks: they find defects that short ones cannot, but do not shrink."""

from collections.abc import Callable
from random import Random

import pytest

from car_daemon.scheduler.backlog import QueueBounds
from tests.daemon.scheduler.test_interleavings import CLASSES, DEVICES, HOSTS, MODELS, USABLE, Interleavings


def walk(seed: int, events: int, hosts: tuple[str | None, ...] = (None,)) -> None:
    """Take one walk, with every event as likely as it is in a busy daemon; engines come up on any of the hosts."""
    random = Random(seed)
    machine = Interleavings()
    bounds = QueueBounds(random.randint(1, 6), 10, random.choice(["block", "drop_newest", "drop_oldest"]))
    machine.begin(random.choice([None, 1, 2, 3]), bounds, [random.randint(1, 3), random.randint(1, 3)])

    def random_place() -> tuple[str, str | None]:
        return random.choice(DEVICES), random.choice(hosts)

    rules: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: machine.submit_many([(random.choice(MODELS), random.choice(CLASSES)) for _ in range(2)])),
        (6, lambda: submit_any(machine, random)),
        (9, lambda: machine.prepared(random.randrange(100), random.randrange(10))),
        (3, lambda: machine.advanced(random.randrange(100), 2, random.random() < 0.2)),
        (5, lambda: machine.ended(random.randrange(100), random.randrange(10))),
        (5, lambda: machine.set_aside(random.randrange(100))),
        (3, lambda: machine.cancel(random.randrange(100))),
        (1, lambda: machine.pause(random.randrange(100))),
        (2, lambda: machine.unpause(random.randrange(100))),
        (1, lambda: machine.disconnect(random.randrange(3))),
        (2, lambda: machine.a_request_that_is_cancelled_leaves_no_trace(random.choice(MODELS), random.randrange(4))),
        (1, lambda: machine.engine_lost(random.randrange(100), True)),
        (3, lambda: machine.engine_ready(random.choice(MODELS), random.randint(1, 3), *random_place())),
        (1, lambda: machine.model_failed(random.choice(MODELS), random.randrange(3))),
        (1, lambda: machine.pass_time(random.choice([random.random(), 31.0]))),
    ]
    if len(hosts) > 1:
        rules.append((2, lambda: machine.host_pressed(random.choice([None, *HOSTS]), random.choice(list(USABLE)))))
        rules.append((2, lambda: machine.engine_lost(random.randrange(100), True)))
    steps = [step for weight, step in rules for _ in range(weight)]
    for _ in range(events):
        random.choice(steps)()
        check(machine)
    machine.teardown()


def submit_any(machine: Interleavings, random: Random) -> None:
    """Submit a request with any options."""
    machine.submit(
        random.choice(MODELS),
        random.choice(CLASSES),
        random.randrange(12),
        random.randrange(5),
        random.randrange(5),
        random.choice([None, 2.0]),
        random.choice([None, 1.0]),
        random.randrange(3),
        random.randrange(2),
        random.randrange(5),
        random.random() < 0.5,
        random.choice([None, None, None, *DEVICES]),
        random.randrange(4),
    )


def check(machine: Interleavings) -> None:
    """Check every invariant."""
    machine.leases_are_what_runs_and_never_more_than_declared()
    machine.capacity_is_the_sum_over_machines()
    machine.every_request_has_its_one_answer_or_is_in_flight()
    machine.the_totals_add_up()
    machine.nothing_waits_while_a_lease_is_free_for_it()
    machine.everything_runs_where_it_may()
    machine.nothing_is_forgotten_before_the_queue()
    machine.nothing_that_is_paused_waits_for_a_lease()
    machine.the_queue_is_bounded()
    machine.the_accounts_count_what_waits_and_runs()
    machine.a_lease_is_counted_once_below_every_level()
    machine.running_work_is_never_dropped()
    machine.there_are_at_most_as_many_parkings_as_requests_that_took_a_lease()


@pytest.mark.parametrize("seed", range(40))
def test_everything_holds_on_a_long_walk(seed: int) -> None:
    walk(seed, events=120)


@pytest.mark.parametrize("seed", range(40))
def test_everything_holds_on_a_long_walk_over_hosts_that_come_go_and_run_out_of_memory(seed: int) -> None:
    walk(seed, events=120, hosts=(None, *HOSTS))
