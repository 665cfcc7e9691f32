"""Cells are stored two seconds after the last request, one copy at a time; then files are read ahead, in pieces."""

from car_engine.runner.idle_storing import AHEAD_S, IDLE_S, IdleStoring, StoreAll
from tests.engine.batching.test_stored_cells import PROMPT, Disk, Life
from tests.engine.fakes import run_command
from tests.pace import SetClock


def idle_after(*prompts: list[int], full: bool = False) -> tuple[Life, IdleStoring, SetClock]:
    """Return an engine that served these prompts and became idle now."""
    life, clock = Life(Disk(), full=full), SetClock(100.0)
    for key, prompt in enumerate(prompts):
        life.infer(key, prompt)
    return life, IdleStoring(life.engine.cache, life.engine.table, clock), clock


def test_nothing_is_copied_before_the_engine_was_idle_for_a_while() -> None:
    life, storing, clock = idle_after(PROMPT)
    assert storing.wait_s() == IDLE_S
    clock.now += IDLE_S / 2
    assert storing.wait_s() == IDLE_S / 2
    assert life.context.saves == 0
    clock.now += IDLE_S / 2
    assert storing.wait_s() is None
    assert life.context.saves == 1


def test_another_request_begins_the_while_again() -> None:
    life, storing, clock = idle_after(PROMPT)
    storing.wait_s()
    clock.now += IDLE_S
    life.infer(9, PROMPT[:300])
    assert storing.wait_s() == IDLE_S
    assert life.context.saves == 0


def test_the_next_copy_waits_for_the_write_before_it() -> None:
    life, storing, clock = idle_after(PROMPT, [9] * 700)
    storing.wait_s()
    clock.now += IDLE_S
    assert storing.wait_s() is None
    assert storing.wait_s() is None
    assert life.context.saves == 1
    storing.apply(life.store.next_stored())
    assert storing.wait_s() is None
    assert life.context.saves == 2


def test_an_engine_that_ends_stores_all_without_a_delay_and_reports_when_that_is_done() -> None:
    life, storing, _ = idle_after(PROMPT, [9] * 700)
    end = StoreAll()
    storing.apply(end)
    for _ in range(2):
        assert storing.wait_s() is None
        assert not end.done.is_set()
        storing.apply(life.store.next_stored())
    storing.wait_s()
    assert end.done.is_set()
    assert len(life.store.disk.files) == 2


def test_an_engine_that_ends_with_a_full_disk_ends_too() -> None:
    life, storing, _ = idle_after(PROMPT, full=True)
    end = StoreAll()
    storing.apply(end)
    storing.wait_s()
    storing.apply(life.store.next_stored())
    storing.wait_s()
    assert end.done.is_set()


def test_a_copy_that_would_take_too_long_is_not_made() -> None:
    life, _, _ = idle_after(PROMPT)
    assert not life.engine.cache.storing.store_next(most_s=1e-9)
    assert life.context.saves == 0


def test_files_are_read_ahead_from_the_start_a_piece_at_a_time_until_none_is_left() -> None:
    life, storing, _ = idle_after()
    life.store.pieces = 3
    assert [storing.wait_s() for _ in range(3)] == [AHEAD_S, AHEAD_S, None]


def test_no_file_is_read_ahead_beside_a_request_or_shortly_after_it() -> None:
    life, storing, clock = idle_after()
    life.store.pieces = 3
    life.engine.turn(run_command(1, PROMPT, 5))
    while life.engine.table.busy:
        life.engine.turn(*life.engine.loop.next_commands())
    assert storing.wait_s() == IDLE_S
    assert life.store.pieces == 3
    clock.now += IDLE_S
    storing.wait_s()
    assert life.store.pieces == 2


def test_cells_are_stored_before_files_are_read_ahead() -> None:
    life, storing, clock = idle_after(PROMPT)
    life.store.pieces = 3
    storing.wait_s()
    clock.now += IDLE_S
    assert storing.wait_s() is None
    assert (life.context.saves, life.store.pieces) == (1, 3)
    storing.apply(life.store.next_stored())
    assert storing.wait_s() == AHEAD_S


def test_no_file_is_read_ahead_while_memory_is_short() -> None:
    life, storing, _ = idle_after()
    life.store.pieces = 3
    life.engine.cache.spare_memory(True)
    assert storing.wait_s() is None
    life.engine.cache.spare_memory(False)
    assert storing.wait_s() == AHEAD_S
