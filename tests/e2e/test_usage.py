"""The ledger of a real daemon: rows of people and apps, its file over restarts, and who sees them."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import CANARY, PATIENCE_S, Daemon, Json, RawClient, configured, endless

PEOPLE = "[people.anna]\n[people.bob]\n"


@pytest.fixture
def shared(start: Callable[..., Daemon], folder: Path) -> Daemon:
    return start("--capacity", "2", *configured(folder, PEOPLE))


def usage(client: RawClient, **params: Any) -> Json:
    report: Json = client.result("daemon/usage", params)
    return report


def test_rows_are_what_answers_say_by_person_app_and_model(shared: Daemon) -> None:
    with shared.connect() as client:
        answers = [
            client.result("infer", {"prompt": f"{CANARY} {number}", "max_tokens": 9, "person": "anna", "client": app})
            for number, app in enumerate(("editor", "editor", "chat"))
        ]
        vectors = client.result("embed", {"input": [CANARY, "b"], "person": "bob", "client": "notes"})["usage"]
        question = {"type": "predicate", "instructions": "Is it so?"}
        decision = client.result("decide", {"state": CANARY, "questions": [question], "person": "bob"})["usage"]
        sums = {
            name: sum(answer["usage"][name] for answer in answers)
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
        }
        report = usage(client, by=["person"])
        anna, bob = sorted(report["rows"], key=lambda row: str(row["person"]))
        assert anna["completed"] == 3
        assert {name: anna.get(name, 0) for name in sums} == sums
        assert anna["computed_tokens"] == sums["prompt_tokens"] - sums["cached_tokens"]
        assert (bob["completed"], bob["texts"], bob["decisions"]) == (2, 2, 1)
        assert bob["computed_tokens"] == vectors["prompt_tokens"] + decision["computed_tokens"]
        assert report["total"]["completed"] == 5
        by_app = usage(client, by=["app", "person"], person="anna")["rows"]
        assert {row["app"]: row["completed"] for row in by_app} == {"editor": 2, "chat": 1}
        by_app = usage(client, by=["app"], person="bob")["rows"]
        assert {row["app"]: row.get("texts", 0) for row in by_app} == {"notes": 2, "": 0}
        assert CANARY not in str(report)


def test_a_person_gets_its_own_rows_and_no_metrics_of_usage(shared: Daemon) -> None:
    with shared.connect() as client:
        client.result("infer", {"prompt": CANARY, "max_tokens": 2, "person": "anna", "client": "secret"})
        seen = usage(client, by=["app", "person"], person="bob")
        assert (seen["rows"], seen["total"]) == ([], {})
        shown = [client.result("daemon/metrics", {"person": name})["text"] for name in ("anna", "bob")]
        assert not any("secret" in text or "anna" in text for text in shown)
        usage(client)
        assert 'card_usage_requests_total{app="secret"' in client.result("daemon/metrics")["text"]


def test_refusals_and_cancelled_requests_count_with_their_outcome(shared: Daemon, folder: Path) -> None:
    with shared.connect() as client:
        running = client.send("infer_stream", endless(person="anna"))
        assert client.receive()["method"] == "infer_stream/chunk"
        client.result("$/cancelRequest", {"id": running})
        client.response(running)
        client.response(client.send("infer", {"prompt": CANARY, "model": "none", "person": "anna"}))
        client.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna"})
        total = usage(client, person="anna")["total"]
        assert (total["completed"], total["cancelled"], total["rejected"]) == (1, 1, 1)
        assert total["completion_tokens"] > 1


def flood(daemon: Daemon, count: int, *, act: Callable[[], object] = lambda: None) -> Counter[str]:
    """Send short requests of two people, with cancels among them and an act in their midst; count the outcomes."""
    found = Counter[str]()
    with daemon.connect() as client:
        for first in range(0, count, 60):
            ids = []
            for number in range(first, min(first + 60, count)):
                params = {"prompt": f"{CANARY} {number % 7}", "max_tokens": 1 + number % 5}
                who = {"person": ("anna", "bob")[number % 2], "client": f"app {number % 3}"}
                ids.append(client.send("infer", params | who))
            for each in ids[::8]:
                client.notify("$/cancelRequest", {"id": each})
            if first == count // 120 * 60:
                act()
            for each in ids:
                answer = client.response(each)
                outcome = "completed" if "result" in answer else "cancelled"
                assert outcome == "completed" or answer["error"]["code"] == -32800, answer
                found[outcome] += 1
                for name in ("prompt_tokens", "completion_tokens") if "result" in answer else ():
                    found[name] += answer["result"]["usage"][name]
    return found


def wait_for_counters(client: RawClient, expected: tuple[int, int]) -> None:
    """Return once the engine's own counters are so: they come with its heartbeat."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        engine = client.result("daemon/status")["models"][0]["engines"][0]
        if (found := (engine["computed_tokens"], engine["sampled_tokens"])) == expected:
            return
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.05)  # nothing announces a heartbeat


@pytest.mark.slow
def test_some_thousand_requests_count_what_engines_and_answers_say_over_deaths_and_a_restart(
    start: Callable[..., Daemon], folder: Path
) -> None:
    flags = ("--capacity", "4", *configured(folder, PEOPLE))
    daemon = start(*flags)
    with daemon.connect() as client:
        found = flood(daemon, 1500)
        total = usage(client)["total"]
        wait_for_counters(client, (total["computed_tokens"], total["completion_tokens"]))
        assert {name: total[name] for name in ("completed", "cancelled")} == {
            name: found[name] for name in ("completed", "cancelled")
        }
        assert total["completion_tokens"] >= found["completion_tokens"]
        assert total["prompt_tokens"] >= found["prompt_tokens"]
        assert "failed" not in total
        found += flood(daemon, 600, act=daemon.engine().kill)
    assert daemon.stop() == 0
    again = start(*flags)
    with again.connect() as client:
        before = usage(client)["total"]
        found += flood(again, 600)
        total = usage(client)["total"]
        more = [total[name] - before[name] for name in ("computed_tokens", "completion_tokens")]
        wait_for_counters(client, (more[0], more[1]))
        assert total["completed"] + total["cancelled"] == found["completed"] + found["cancelled"] == 2700
        assert total["completed"] == found["completed"]
        rows = usage(client, by=["person", "app"])["rows"]
        assert sum(row["completed"] for row in rows) == found["completed"]
        assert len(rows) == 6


def written(folder: Path) -> int:
    """Return the tokens of answers in the file, as another program reads it."""
    try:
        with sqlite3.connect(f"file:{folder / 'car' / 'usage' / 'usage.db'}?mode=ro", uri=True) as file:
            return int(file.execute("SELECT coalesce(sum(completion_tokens), 0) FROM usage").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # it is not there yet


def test_a_daemon_that_is_killed_has_written_what_ran_meanwhile(
    shared: Daemon, start: Callable[..., Daemon], folder: Path
) -> None:
    with shared.connect() as client:
        running = client.send("infer_stream", endless(person="anna"))
        deadline = time.monotonic() + PATIENCE_S
        first = found = 0
        # Two writes while one request runs: the ledger is written by time, not at a request's end.
        while not 0 < first < found:
            assert time.monotonic() < deadline
            first = first or found
            assert client.receive().get("id") != running
            found = written(folder)
        shared.kill()
        found = written(folder)
    again = start("--capacity", "2", *configured(folder, PEOPLE))
    with again.connect() as client:
        row = usage(client, person="anna")["total"]
        assert row["completion_tokens"] == found >= first
        assert "completed" not in row


def test_the_tokens_of_a_day_are_limited_also_after_a_restart(start: Callable[..., Daemon], folder: Path) -> None:
    limited = "[people.anna]\ntokens_per_day = 20\n[people.bob]\n"
    daemon = start("--capacity", "2", *configured(folder, limited))
    with daemon.connect() as client:
        client.result("infer", {"prompt": CANARY, "max_tokens": 30, "person": "anna"})
    daemon.stop()
    again = start("--capacity", "2", *configured(folder, limited))
    with again.connect() as client:
        client.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "bob"})
        usage(client)  # it comes behind the reading of the tokens of today
        error = client.response(client.send("infer", {"prompt": CANARY, "person": "anna"}))["error"]
        facts = error["data"]
        assert (error["code"], facts["reason"], facts["limit"], facts["value"]) == (1001, "quota", "tokens_per_day", 20)
        assert facts["used"] > 20
        assert facts["ends_at"] - time.time() == pytest.approx(facts["retry_after_ms"] / 1000, abs=PATIENCE_S)
        assert time.localtime(facts["ends_at"])[3:6] == (0, 0, 0)
        configured(folder, PEOPLE)
        client.result("daemon/reload")
        assert client.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna"})


def test_requests_that_were_sent_at_once_end_at_the_tokens_of_a_day_too(
    start: Callable[..., Daemon], folder: Path
) -> None:
    """What waits when they are used up is refused in its turn; what runs goes on."""
    daemon = start("--capacity", "2", *configured(folder, "[people.anna]\ntokens_per_day = 50\n[people.bob]\n"))
    with daemon.connect() as client:
        asked = {"max_tokens": 40, "ignore_eos": True, "person": "anna"}
        sent = [client.send("infer", {"prompt": f"{CANARY} {number}", **asked}) for number in range(12)]
        sent += [
            client.send("infer", {"prompt": CANARY, "n": 3, **asked}),
            client.send("embed", {"input": [CANARY], "person": "anna"}),
        ]
        answers = [client.response(each) for each in sent]
        refused = [answer["error"]["data"]["limit"] for answer in answers if "error" in answer]
        # Two that each leave room for the other's begin, and two more before either ends.
        assert len(sent) - 4 <= len(refused) < len(sent)
        assert set(refused) == {"tokens_per_day"}
        queue = client.result("daemon/status")["queue"]
        assert queue["latency_critical"] == 0
        assert client.result("infer", {"prompt": CANARY, "max_tokens": 40, "person": "bob"})


def test_requests_of_a_person_in_the_background_are_of_the_class_that_gives_way(
    start: Callable[..., Daemon], folder: Path
) -> None:
    daemon = start("--capacity", "1", *configured(folder, "[people.anna]\nbackground = true\n[people.bob]\n"))
    with daemon.connect() as client:
        running = client.send("infer_stream", endless())
        assert client.receive()["method"] == "infer_stream/chunk"
        client.send("infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna", "priority": "latency_critical"})
        client.send("embed", {"input": [CANARY], "person": "anna"})
        while (queue := client.result("daemon/status")["queue"])["throughput"] < 2:
            pass
        assert (queue["throughput"], queue["latency_critical"]) == (2, 0)
        client.result("$/cancelRequest", {"id": running})


def test_without_people_there_is_no_file(start: Callable[..., Daemon], folder: Path) -> None:
    daemon = start("--capacity", "2", *configured(folder, ""))
    with daemon.connect() as client:
        client.result("infer", {"prompt": CANARY, "max_tokens": 2})
        report = usage(client)
        assert (report["rows"], "no ledger" in report["why"]) == ([], True)
    assert daemon.stop() == 0
    assert not (folder / "car").exists()


def test_a_ledger_that_cannot_be_written_costs_no_request_and_is_one_warning(
    start: Callable[..., Daemon], folder: Path
) -> None:
    (folder / "car").mkdir()
    (folder / "car" / "usage").write_text("in the way")
    daemon = start("--capacity", "2", *configured(folder, PEOPLE))
    with daemon.connect() as client:
        for _ in range(5):
            client.result("infer", {"prompt": CANARY, "max_tokens": 2, "person": "anna"})
            assert "ledger cannot be written" in usage(client).get("why", "ledger cannot be written")
        assert "ledger cannot be written" in usage(client)["why"]
    assert daemon.stop() == 0
    assert daemon.log.read_text().count("usage.not_written") == 1
