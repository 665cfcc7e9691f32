"""The door of one user in front of a daemon of several: many keys are one user."""

import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import msgspec
import pytest

from tests.door.support import DoorProcess, door_before
from tests.e2e.support import PATIENCE_S
from tests.e2e.users import ALICE, ARE_REAL, BOB, connect_as, shared_daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not ARE_REAL, reason="only Linux's root becomes another user"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing (util-linux)"),
]
# Another user may not enter the folders of root's Python; reading is the one privilege that it gets.
READS = "-all,+dac_read_search"
KEY = "k" * 40
KEYS, FLOODS, SEQUENCES, TURNS = 20, 60, 4, 20


@pytest.fixture
def door(folder: Path) -> Iterator[tuple[DoorProcess, Path]]:
    """Alice's door with many keys, and the socket of a daemon of four sequences that admits Bob too."""
    with shared_daemon(folder, f"[capacity]\nsequences = {SEQUENCES}\n") as daemon:
        home = folder / "alice"
        (home / "config" / "car").mkdir(parents=True)
        keys = home / "config" / "car" / "http-keys"
        keys.write_text("".join(f"app{number} {KEY}{number:02}\n" for number in range(KEYS)))
        keys.chmod(0o600)
        for each in (home, home / "config", keys.parent, keys):
            shutil.chown(each, ALICE, ALICE)
        become = ("setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", f"--inh-caps={READS}")
        with door_before(home, daemon.path, under=(*become, f"--ambient-caps={READS}")) as serving:
            yield serving, daemon.path


def flood(door: DoorProcess, number: int, done: list[int], over: Event) -> None:
    """Send requests of one key again and again until it is over; list the answered ones in `done`."""
    body = msgspec.json.encode({"model": "guide", "prompt": f"{number}", "max_tokens": 60, "ignore_eos": True})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}{number % KEYS:02}"}
    with closing(HTTPConnection("127.0.0.1", door.port, timeout=PATIENCE_S)) as connection:
        while not over.is_set():
            connection.request("POST", "/v1/completions", body, headers)
            with connection.getresponse() as response:
                response.read()
                assert response.status == 200, response.status
            done.append(number)


def test_many_keys_of_one_user_get_the_share_of_one_user(door: tuple[DoorProcess, Path]) -> None:
    serving, daemon = door
    done, over = list[int](), Event()
    with connect_as(BOB, daemon) as bob, ThreadPoolExecutor(FLOODS) as pool:
        floods = [pool.submit(flood, serving, number, done, over) for number in range(FLOODS)]
        try:
            while len(done) < FLOODS or not bob.result("daemon/status")["queue"]["latency_critical"]:
                bob.result("infer", {"prompt": "Bob", "max_tokens": 1})
            before = len(done)
            for _ in range(TURNS):
                bob.result("infer", {"prompt": "Bob", "max_tokens": 60, "ignore_eos": True})
            meanwhile = len(done) - before
        finally:
            over.set()
        for each in floods:
            each.result()
    # Each of Bob's requests gets the next sequence. As one of many labels he would wait for all that are before him.
    assert meanwhile <= TURNS * 3 * SEQUENCES
    assert len(set(done)) == FLOODS
