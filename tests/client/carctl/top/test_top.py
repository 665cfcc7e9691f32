"""`carctl top`: its state, its picture, and its keys on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.terminal.keyboard import pressed
from car_client.carctl.top.state import CancelTarget, TopState
from car_client.carctl.top.view import view
from car_client.results import Status
from car_protocol.errors import RpcError
from tests.client.carctl.command import Terminal, carctl, carctl_on_terminal, interrupt
from tests.client.carctl.pictures import busy, drawn, kept
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import busy_status


@pytest.fixture
def state() -> TopState:
    """The state after the busy daemon's status was seen."""
    seen = TopState()
    seen.update(busy(), 100.0)
    return seen


def later(**changes: Any) -> Status:
    """Return the busy daemon's status with changes to its first running request."""
    sample = busy_status()
    sample["sequences"][0] |= changes
    return msgspec.convert(sample, Status)


def sequences(state: TopState) -> list[int]:
    """Return the sequences in the order shown."""
    return [row.sequence for row in state.rows]


def press(state: TopState, *keys: str) -> CancelTarget | None:
    """Press keys; returns what the last one asks for."""
    *before, last = keys
    for key in before:
        assert state.press(key) is None
    return state.press(last)


@pytest.mark.parametrize(
    ("key", "order"),
    [("a", [5, 4, 3, 2, 1, 0]), ("d", [5, 2, 4, 1, 3, 0]), ("p", [5, 4, 3, 2, 1, 0]), ("n", [5, 0, 1, 2, 4, 3])],
)
def test_a_key_sorts_and_the_order_stays(state: TopState, key: str, order: list[int]) -> None:
    state.press(key)
    assert sequences(state) == order
    state.update(busy(), 101.0)
    assert sequences(state) == order


def test_the_oldest_comes_first_and_is_chosen(state: TopState) -> None:
    assert state.chosen is state.rows[0]
    assert sequences(state)[0] == 5


def test_requests_of_an_app_stand_together_in_each_order_and_below_them_those_that_wait(state: TopState) -> None:
    sample = busy_status()
    sample["sequences"][5] |= {"client": "editor"}
    state.update(msgspec.convert(sample, Status), 101.0)
    assert sequences(state) == [5, 0, 4, 3, 2, 1]
    state.press("d")
    assert sequences(state) == [5, 0, 2, 4, 1, 3]
    lines = drawn(view(state, msgspec.convert(sample, Status), 80, 24), 80).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("client "))
    apps = [" ".join(line.split()[:2]) for line in lines[start + 1 : start + 4]]
    assert apps == ["editor 5:5", "editor 0:0", "editor 2"]
    assert any(line.startswith("summarizer") and "full queue" in line for line in lines[start + 5 :])


@pytest.mark.parametrize(("keys", "place"), [(["down"], 1), (["j", "j", "k"], 1), (["up"], 0), (["down"] * 20, 5)])
def test_the_choice_moves_within_the_rows(state: TopState, keys: list[str], place: int) -> None:
    press(state, *keys)
    assert state.chosen is state.rows[place]


def test_the_choice_stays_with_its_request(state: TopState) -> None:
    press(state, "down", "d")
    assert state.chosen is not None
    assert state.chosen.sequence == 4


def test_the_choice_does_not_pass_to_another_request_on_the_same_sequence(state: TopState) -> None:
    press(state, *["down"] * 5, "c")
    state.update(later(id=77), 101.0)
    assert state.press("y") is None
    assert state.message == "that request has ended"


def test_rates_are_the_tokens_since_the_status_before(state: TopState) -> None:
    state.update(later(done_tokens=90), 102.0)
    (row,) = [row for row in state.rows if row.sequence == 0]
    assert state.rates[row.model, row.sequence, row.connection, row.id] == 45.0


def test_a_cancellation_is_asked_for_and_confirmed(state: TopState) -> None:
    assert press(state, "down", "c") is None
    assert state.confirming
    assert state.press("y") == CancelTarget(4, 4)
    assert not state.confirming


@pytest.mark.parametrize("key", ["n", "q", "c", "down"])
def test_any_other_key_keeps_the_request(state: TopState, key: str) -> None:
    assert press(state, "c", key) is None
    assert (state.confirming, state.over) == (False, False)
    assert state.press("y") is None


def test_another_user_s_request_cannot_be_cancelled() -> None:
    sample = busy_status()
    for row in sample["sequences"]:
        del row["id"]
    state = TopState()
    state.update(msgspec.convert(sample, Status), 0.0)
    state.press("c")
    assert (state.confirming, state.message) == (False, "that request is another user's")


def test_without_requests_no_key_does_harm() -> None:
    state = TopState()
    state.update(msgspec.convert(busy_status() | {"sequences": []}, Status), 0.0)
    assert press(state, "down", "up", "d", "c", "y") is None
    idle = msgspec.convert(busy_status() | {"sequences": [], "waiting": []}, Status)
    assert "nothing runs" in drawn(view(state, idle, 80, 24), 80)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_the_picture_is_the_kept_one(state: TopState, width: int, height: int) -> None:
    state.update(later(done_tokens=90), 102.0)
    shown = drawn(view(state, busy(), width, height), width)
    assert shown == kept(f"top_{width}x{height}", shown)
    assert len(shown.splitlines()) == height
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("keys", [[], ["down"] * 5])
def test_a_low_terminal_shows_the_chosen_request(state: TopState, keys: list[str]) -> None:
    for key in keys:
        state.press(key)
    assert state.chosen is not None
    assert f"{state.chosen.connection}:{state.chosen.id}" in drawn(view(state, busy(), 80, 14), 80)


@pytest.mark.parametrize(("width", "height"), [(80, 12), (80, 8), (40, 10)])
def test_a_low_or_narrow_terminal_still_shows_who_runs_and_the_keys(state: TopState, width: int, height: int) -> None:
    lines = drawn(view(state, busy(), width, height), width).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("card 0.3.0 serving")
    assert any(line.startswith("connection 5") and "5:5" in line for line in lines)
    assert lines[-1].startswith("q quit")


def test_without_a_daemon_no_screen_is_taken(tmp_path: Path) -> None:
    with carctl_on_terminal("--socket", tmp_path / "none", "top", env={"TERM": "xterm-256color"}) as terminal:
        shown = terminal.end()
    assert b"no daemon answers" in shown
    assert b"\x1b[?1049h" not in shown


def test_the_bottom_asks_before_it_cancels(state: TopState) -> None:
    state.press("c")
    assert "cancel request 5:5? y, any other key keeps it" in drawn(view(state, busy(), 80, 24), 80)


@contextmanager
def topping(daemon: FakeDaemon) -> Iterator[Terminal]:
    """Run it on a terminal until it shows the one running request."""
    env = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
    with carctl_on_terminal("--socket", daemon.path, "top", env=env) as terminal:
        terminal.read_until(b"editor")
        yield terminal


def test_c_and_y_cancel_at_the_daemon_and_q_quits(daemon: FakeDaemon) -> None:
    with topping(daemon) as terminal:
        terminal.type(b"c")
        terminal.read_until(b"cancel request 3:9?")
        terminal.type(b"y")
        terminal.read_until(b"request 3:9 is cancelled")
        terminal.type(b"\x1b[Bq")
        shown = terminal.end()
    assert terminal.process.returncode == 0
    assert daemon.params("daemon/cancel") == {"connection": 3, "id": 9}
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1


def test_a_refused_cancellation_is_told(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/cancel"] = RpcError("not_permitted")
    with topping(daemon) as terminal:
        terminal.type(b"cy")
        terminal.read_until(b"not_permitted")


def test_it_draws_what_the_daemon_tells(daemon: FakeDaemon) -> None:
    with topping(daemon) as terminal:
        daemon.tell_status(pid=4343)
        terminal.read_until(b"pid 4343")
        interrupt(terminal.process)
        terminal.end()
    assert terminal.process.returncode == 130


def test_a_daemon_that_goes_away_ends_it_with_one_line(daemon: FakeDaemon) -> None:
    with topping(daemon) as terminal:
        daemon.drop()
        assert terminal.end().endswith(b"carctl: the connection to the daemon was lost\n")
    assert terminal.process.returncode == 69


def test_a_pipe_is_no_place_for_it(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "top")
    assert (done.returncode, done.stderr) == (
        2,
        b"carctl: top needs a terminal: use `carctl status --watch` here\n",
    )


def test_without_rich_it_says_what_to_install(daemon: FakeDaemon) -> None:
    with carctl_on_terminal("--socket", daemon.path, "top", env={"TERM": "xterm"}, without=("rich",)) as terminal:
        assert terminal.end() == b"carctl: top needs rich: pip install 'card-daemon[terminal]'\n"
    assert terminal.process.returncode == 2


@pytest.mark.parametrize(
    ("typed", "keys"),
    [(b"q", ["q"]), (b"\x1b[A\x1bOBx", ["up", "down", "x"]), (b"\x1b[3~y", ["\x1b[3~", "y"]), (b"", ["end"])],
)
def test_keys_that_send_several_bytes_are_one(typed: bytes, keys: list[str], tmp_path: Any) -> None:
    (tmp_path / "keyboard").write_bytes(typed)
    with (tmp_path / "keyboard").open("rb") as keyboard:
        assert pressed(keyboard.fileno()) == keys


@pytest.mark.parametrize("own", [True, False])
def test_requests_of_other_users_are_a_row_with_their_count(own: bool) -> None:
    sample = busy_status() | {"others": {"connections": 1, "in_flight": 2, "sequences": 1}}
    status = msgspec.convert(sample if own else sample | {"sequences": []}, Status)
    state = TopState()
    state.update(status, 100.0)
    lines = drawn(view(state, status, 80, 24), 80).splitlines()
    assert len(lines) == 24
    assert sum("1 of other users" in line for line in lines) == 1
    assert not any("nothing runs" in line for line in lines)
