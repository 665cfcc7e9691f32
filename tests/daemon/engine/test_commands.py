"""What an idle loop waits for before it begins."""

import socket
import threading

import pytest

from car_daemon.engine.codec import encode_frame
from car_daemon.engine.commands import Command, Commands
from car_daemon.engine.frames import Halt, Prepare, Run
from car_daemon.engine.process import EngineProcess
from car_protocol.sampling import Sampling
from tests.daemon.engine.fakes import FakeContext, FakeEngine, run_command

ROOM = 4
# Whoever waits so long without a reason lets the test fail by its limit of time.
LONG_S = 1000.0


def test_a_lone_prompt_waits_for_nobody() -> None:
    commands = Commands(LONG_S)
    commands.announce(1)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def test_a_prompt_waits_for_those_that_are_being_prepared() -> None:
    commands = commands_that_come(command(2), command(3))
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
    commands = commands_that_come(Halt(1, deadline=False), command(2))
    commands.announce(2)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1), Halt(1, deadline=False), command(2)]


def test_a_prompt_that_never_came_is_waited_for_only_once() -> None:
    commands = Commands(0.01)
    commands.announce(2)
    commands.put(command(1))
    commands.gather(ROOM)
    commands = patient(commands)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def test_an_engine_announces_what_it_is_asked_to_prepare() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = EngineProcess(theirs)
        process._handle(encode_frame(prepare(1)) + encode_frame(prepare(2)))
        commands = process._commands
        commands.put(command(1))
        late = threading.Timer(0, commands.put, [command(2)])
        late.start()
        assert patient(commands).gather(ROOM) == [command(1), command(2)]
        late.join()


def test_an_idle_loop_starts_prompts_together_that_were_sent_together() -> None:
    commands = commands_that_come(command(2))
    for key in (1, 2):
        commands.announce(key)
    commands.put(command(1))
    engine = FakeEngine(FakeContext(), commands=commands)
    engine.loop.turn(engine.loop._next_commands())
    assert [engine.number_of(1), engine.number_of(2)] == [0, 1]


@pytest.mark.parametrize("patience", [0.0, 0.01])
def test_nobody_waits_for_long_for_a_prompt_that_never_comes(patience: float) -> None:
    commands = Commands(patience)
    commands.announce(2)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def commands_that_come(*to_come: Command) -> Commands:
    """Return an inbox where these come while somebody waits for them."""
    left = list(to_come)

    def clock() -> float:
        # Asked once after the first prompt came, and before each wait for another.
        if left:
            commands.put(left.pop(0))
        return 0.0

    commands = Commands(LONG_S, clock)
    return commands


def patient(commands: Commands) -> Commands:
    commands._patience = LONG_S
    return commands


def prepare(key: int) -> Prepare:
    return Prepare(
        key=key,
        prompt="Hi",
        tokens=None,
        chat=None,
        parse_special=False,
        max_tokens=None,
        sampling=Sampling(),
        grammar=None,
        json_schema=None,
    )


def command(key: int) -> Run:
    return run_command(key, [5, 6, 7])
