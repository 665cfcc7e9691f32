"""An inbox returns in time, whatever came before."""

from threading import Thread

from car_base.ipc.inbox import Inbox
from tests.pace import HANG_S


def test_a_short_wait_ends_after_something_was_received_at_once() -> None:
    inbox = Inbox[int]()

    def wait() -> None:
        for _ in range(30_000):
            inbox.put(1)
            assert inbox.receive(wait=False) == [1]
            assert inbox.receive(wait=True, timeout=1e-6) == []

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(HANG_S)
    assert not waiting.is_alive()


def test_who_waits_has_what_came_before_and_meanwhile() -> None:
    inbox = Inbox[int]()
    inbox.put(1)
    assert inbox.receive(wait=True) == [1]
    Thread(target=inbox.put, args=(2,)).start()
    assert inbox.receive(wait=True, timeout=HANG_S) == [2]
    assert inbox.empty
