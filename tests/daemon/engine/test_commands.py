"""What an idle loop waits for before it begins."""

import pytest

from car_daemon.engine.commands import Commands
from car_daemon.engine.frames import Halt, Run
from tests.daemon.engine.fakes import run_command

ROOM = 4
# Whoever waits so long without a reason lets the test fail by its limit of time.
LONG_S = 1000.0


def test_a_lone_prompt_waits_for_nobody() -> None:
    commands = Commands(LONG_S)
    commands.announce(1)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def test_a_prompt_waits_for_those_that_are_being_prepared() -> None:
    to_come = [command(2), command(3)]

    def clock() -> float:
        # Asked once after the first prompt came, and before each wait for another.
        if to_come:
            commands.put(to_come.pop(0))
        return 0.0

    commands = Commands(LONG_S, clock)
    for key in (1, 2, 3):
        commands.announce(key)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1), command(2), command(3)]


def test_a_prompt_does_not_wait_for_those_that_no_sequence_is_left_for() -> None:
    commands = Commands(LONG_S)
    commands.announce(3)
    commands.put(command(1))
    commands.put(command(2))
    assert commands.gather(2) == [command(1), command(2)]


def test_what_is_no_prompt_waits_for_nobody() -> None:
    commands = Commands(LONG_S)
    commands.announce(2)
    commands.put(Halt(1, deadline=False))
    assert commands.gather(ROOM) == [Halt(1, deadline=False)]


def test_other_commands_that_come_meanwhile_are_kept_in_order() -> None:
    commands = Commands(LONG_S)
    commands.announce(2)
    for each in (command(1), Halt(1, deadline=False), command(2)):
        commands.put(each)
    assert commands.gather(ROOM) == [command(1), Halt(1, deadline=False), command(2)]


@pytest.mark.parametrize("patience", [0.0, 0.01])
def test_nobody_waits_for_long_for_a_prompt_that_never_comes(patience: float) -> None:
    commands = Commands(patience)
    commands.announce(2)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def command(key: int) -> Run:
    return run_command(key, [5, 6, 7])
