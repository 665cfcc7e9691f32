"""Prompts that an idle loop awaits before it begins."""

import socket
import threading

import pytest

from car_base.ipc.codec import encode_frame
from car_base.ipc.frames import Halt, Park, Prepare, Resume, Run
from car_engine.process import EngineProcess
from car_engine.runner.loop import Command, Commands
from car_protocol.infer import PromptParams
from tests.engine.fakes import FakeContext, FakeEngine, run_command

ROOM = 4
# A wait of this length fails the test by its timeout.
LONG_S = 1000.0


def test_a_lone_prompt_starts_at_once() -> None:
    commands = Commands(LONG_S)
    commands.announce(1)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


def test_a_prompt_waits_for_others_in_preparation() -> None:
    commands = commands_that_come(command(2), command(3))
    for key in (1, 2, 3):
        commands.announce(key)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1), command(2), command(3)]


def test_a_prompt_does_not_wait_for_others_without_a_sequence() -> None:
    commands = Commands(LONG_S)
    commands.announce(3)
    commands.put(command(1))
    commands.put(command(2))
    assert commands.gather(2) == [command(1), command(2)]


def test_a_command_that_is_not_a_prompt_starts_at_once() -> None:
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


def test_an_engine_announces_the_prompts_that_it_prepares() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = EngineProcess(theirs, theirs)
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
    engine.loop.turn(engine.loop.next_commands())
    assert [engine.number_of(1), engine.number_of(2)] == [0, 1]


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_the_wait_for_a_prompt_that_never_comes_is_short(timeout: float) -> None:
    commands = Commands(timeout)
    commands.announce(2)
    commands.put(command(1))
    assert commands.gather(ROOM) == [command(1)]


@pytest.mark.parametrize("follower", [run_command(2, [5, 6, 7]), Resume(2)], ids=["new", "parked"])
def test_after_an_end_beside_streams_the_next_request_is_awaited(follower: Command) -> None:
    assert commands_that_come(follower).follow(1, LONG_S) == [follower]


def test_after_several_ends_as_many_requests_are_awaited_and_other_commands_are_kept_in_order() -> None:
    commands = commands_that_come(command(3), Halt(1, deadline=False), command(4))
    assert commands.follow(2, LONG_S) == [command(3), Halt(1, deadline=False), command(4)]


def test_a_request_that_came_already_is_not_awaited() -> None:
    commands = Commands(LONG_S)
    commands.put(command(2))
    assert commands.follow(1, LONG_S) == [command(2)]


@pytest.mark.parametrize(("timeout", "patience"), [(LONG_S, 0.0), (0.0, LONG_S), (0.01, 0.01)])
def test_the_wait_for_the_next_request_is_short(timeout: float, patience: float) -> None:
    commands = Commands(timeout)
    assert commands.follow(1, patience) == []


def test_a_request_that_follows_at_once_is_read_before_the_next_decode_of_the_others() -> None:
    commands = commands_that_come(command(3))
    engine = FakeEngine(context := FakeContext(), commands=commands)
    engine.turn(run_command(1, [3, 4, 5], 20), run_command(2, [4, 5, 6], 2))
    while not engine.ends(2):
        engine.turn()
    engine.loop.turn(engine.loop.next_commands())
    assert engine.number_of(3) is not None
    assert len(context.batches[-1].tokens) == len(command(3).prepared.tokens) // 4


def test_a_request_that_takes_a_parked_sequence_is_read_before_the_next_decode_of_the_others() -> None:
    engine = FakeEngine(context := FakeContext(), commands=commands_that_come(command(3)))
    engine.turn(run_command(1, [3, 4, 5], 20), run_command(2, [4, 5, 6], 20))
    engine.turn()
    engine.turn(Park(2))
    assert engine.number_of(3) is not None
    assert len(context.batches[-1].tokens) == len(command(3).prepared.tokens) // 4


def test_a_lone_request_that_ends_delays_no_command() -> None:
    engine = FakeEngine(FakeContext(), commands=Commands(LONG_S))
    engine.turn(run_command(1, [3, 4, 5], 2))
    engine.finish()
    engine.commands.put(command(2))
    assert engine.loop.next_commands() == [command(2)]


def commands_that_come(*to_come: Command) -> Commands:
    """Return an inbox where these commands come while the loop waits for them."""
    left = list(to_come)

    def clock() -> float:
        # Read once after the first prompt came, and before each wait for another.
        if left:
            commands.put(left.pop(0))
        return 0.0

    commands = Commands(LONG_S, clock)
    return commands


def patient(commands: Commands) -> Commands:
    commands._timeout = LONG_S
    return commands


def prepare(key: int) -> Prepare:
    return Prepare(key, 1000, PromptParams(prompt="Hi"))


def command(key: int) -> Run:
    return run_command(key, [5, 6, 7])
