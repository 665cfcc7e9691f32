"""Long prompts of one app beside the short answers of another, in a real engine."""

import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.e2e.support import CANARY, Daemon, Json, configured, running

pytestmark = pytest.mark.slow

TOKENS, MOST_ANSWERS = 40, 500


def reads(daemon: Daemon, done: Event, answers: list[Json]) -> None:
    """Send one long prompt after the other."""
    with daemon.connect() as client:
        while not done.is_set():
            prompt = f"{CANARY} {len(answers)}. " + "What is a lease? " * 150
            answers.append(client.call("infer", {"prompt": prompt, "max_tokens": 1, "client": "reader"}))


def test_a_long_prompt_yields_to_short_answers_and_all_are_answered_whole() -> None:
    done, read, written = Event(), list[Json](), list[Json]()
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        flags = configured(Path(name), "[scheduler]\nstep_target_ms = 5\n")
        with running(Path(name), *flags, "--capacity", "3", "--log-level", "debug") as daemon:
            daemon.ready()
            readers = [Thread(target=reads, args=(daemon, done, read)) for _ in range(2)]
            for reader in readers:
                reader.start()
            with daemon.connect() as client:
                try:
                    while "schedule.yield" not in daemon.log.read_text():
                        assert len(written) < MOST_ANSWERS
                        short = {"prompt": "Hi", "max_tokens": TOKENS, "ignore_eos": True, "client": "writer"}
                        written.append(client.result("infer", short))
                finally:
                    done.set()
                    for reader in readers:
                        reader.join()
            assert {answer["usage"]["completion_tokens"] for answer in written} == {TOKENS}
            assert all("result" in answer for answer in read)
            assert len(read) >= len(readers)
