"""One gate, one queue: who gets in, who waits, who is told to come back. Each promise is a test by its name."""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, LONG, PATIENCE_S, Daemon, Json, RawClient, configured, endless, greedy, running

Start = Callable[..., Daemon]


def fill(client: RawClient, sequences: int, **more: object) -> list[int]:
    """Hold every sequence with endless work; return the requests' ids."""
    requests = [client.send("infer_stream", endless(**more)) for _ in range(sequences)]
    for request in requests:
        client.first_chunk(request)
    return requests


def cancel(client: RawClient, requests: list[int]) -> None:
    for request in requests:
        client.notify("$/cancelRequest", {"id": request})


@pytest.fixture(scope="module")
def single_daemon() -> Iterator[Daemon]:
    """A daemon of one sequence, with a configuration that tests may change."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        with running(folder, "--capacity", "1", *configured(folder, "")) as daemon:
            yield daemon.ready()


@pytest.fixture
def single(single_daemon: Daemon) -> Iterator[RawClient]:
    """A connection to it, under the usual configuration."""
    with single_daemon.connect() as client:
        bound(single_daemon, "")
        yield client
    single_daemon.wait_until_idle()


def bound(daemon: Daemon, queue: str) -> None:
    """Set the bounds of a running daemon's queue."""
    configured(daemon.path.parent, f"[queue]\n{queue}")
    with daemon.connect() as client:
        client.result("daemon/reload")


# One truth for capacity.


@pytest.mark.slow
def test_zero_and_garbage_limits_are_ignored_and_available_goes_two_one_zero(start: Start) -> None:
    daemon = start("--capacity", "2", CAR_INFERENCE_MAX_CONCURRENT="0")
    with daemon.ready().connect() as client:
        seen = []
        for _ in range(3):
            seen.append(client.result("inference/capacity")["available"])
            if len(seen) < 3:
                client.first_chunk(client.send("infer_stream", endless()))
        capacity = client.result("inference/capacity")
    assert seen == [2, 1, 0]
    assert (capacity["policy"], capacity["in_use"]) == ("flag", 2)


@pytest.mark.slow
def test_a_limit_of_one_serializes_everything(start: Start) -> None:
    daemon = start(CAR_INFERENCE_MAX_CONCURRENT="1")
    with daemon.ready().connect() as client, daemon.connect() as other:
        holder = fill(client, 1)
        waiter = other.send("infer", greedy(KNOWN[0]))
        assert other.result("inference/capacity")["queued"] == 1
        cancel(client, holder)
        assert other.response(waiter)["result"]["text"] == KNOWN[0].answer


def test_a_stream_holds_its_sequence_until_it_ends(small: RawClient) -> None:
    requests = fill(small, 2)
    assert small.result("inference/capacity")["in_use"] == 2
    cancel(small, requests)
    for request in requests:
        small.response(request)
    assert small.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_status_probes_never_queue(small: RawClient) -> None:
    fill(small, 2)
    small.send("infer", greedy(KNOWN[0]))
    for _ in range(50):
        small.result("models/list")
        capacity = small.result("inference/capacity")
    assert (capacity["in_use"], capacity["queued"]) == (2, 1), "endless work takes longer"


@pytest.mark.slow
def test_waits_of_100_ms_and_time_outs_are_logged_with_their_figures(start: Start) -> None:
    daemon = start("--capacity", "1", "--log-format", "json")
    with daemon.ready().connect() as client:
        holder = fill(client, 1)
        late = client.send("infer", greedy(KNOWN[0], queue_timeout_ms=150))
        assert client.response(late)["error"]["data"]["reason"] == "deadline_exceeded"
        waiter = client.send("infer", greedy(KNOWN[0]))
        while not client.result("inference/capacity")["queued"]:
            pass
        time.sleep(0.12)  # the length of a wait is what is tested
        cancel(client, holder)
        client.response(waiter)
    assert daemon.stop() == 0
    events = {event["event"]: event for event in map(json.loads, daemon.log.read_text().splitlines())}
    assert events["request.waited"]["waited_ms"] >= 100
    assert {"capacity", "available"} <= events["request.waited"].keys()
    assert events["request.timed_out"]["limit_ms"] == 150
    assert events["capacity.declared"]["policy"] == "flag"


@pytest.mark.slow
def test_the_debug_log_explains_a_schedule(start: Start) -> None:
    daemon = start("--capacity", "1", "--log-format", "json", "--log-level", "debug")
    with daemon.ready().connect() as client:
        labels = {"client": "canary", "session": "canary"}
        background = client.send("infer_stream", endless(priority="throughput", **labels))
        client.first_chunk(background)
        client.result("infer", greedy(KNOWN[0]))
        refused = client.call("infer", greedy(KNOWN[0], wait=False))["error"]
        assert refused["data"]["why"] == "no free sequence"
        cancel(client, [background])
        client.response(background)
    assert daemon.stop() == 0
    text = daemon.log.read_text()
    events = [event for event in map(json.loads, text.splitlines()) if event["event"].startswith("schedule.")]
    decided = [(event["event"].removeprefix("schedule."), event["key"]) for event in events]
    parked = next(event["key"] for event in events if event["class"] == "throughput")
    urgent, unwilling = parked + 1, parked + 2
    assert [(verb, key) for verb, key in decided if key >= parked and verb != "prepare"] == [
        ("lease", parked),
        ("park", parked),
        ("lease", urgent),
        ("resume", parked),
        ("refuse", unwilling),
    ]
    assert {"model", "engine", "why"} <= events[0].keys()
    assert "canary" not in text
    assert KNOWN[0].question not in text


# Deadlines.


def test_a_queue_timeout_of_50_ms_refuses_after_at_least_45(small: RawClient) -> None:
    fill(small, 2)
    started = time.monotonic()
    error = small.call("infer", greedy(KNOWN[0], queue_timeout_ms=50))["error"]
    assert time.monotonic() - started >= 0.045
    assert (error["code"], error["data"]["started"]) == (1002, False)
    assert small.result("inference/capacity")["in_use"] == 2, "endless work takes longer"


def test_a_queue_timeout_ends_with_the_lease(small: RawClient) -> None:
    half_ms = round(small.result("infer", endless(max_tokens=400))["timings"]["total_ms"])
    answer = small.result("infer", endless(max_tokens=800, queue_timeout_ms=half_ms))
    assert answer["finish_reason"] == "length"


def test_a_deadline_during_the_answer_ends_it_with_what_it_has(small: RawClient) -> None:
    limit_ms = 2 * round(small.result("infer", endless(max_tokens=100))["timings"]["total_ms"])
    while True:
        response = small.call("infer", endless(timeout_ms=limit_ms))
        reason = response["result"]["finish_reason"] if "result" in response else response["error"]["data"]["reason"]
        if reason == "deadline":
            break
        # The machine is as many times slower or faster than while the hundred tokens were written.
        limit_ms = limit_ms // 2 if reason == "length" else 2 * limit_ms
        assert reason in ("length", "deadline_exceeded")
    assert response["result"]["usage"]["completion_tokens"] > 0
    assert response["result"]["timings"]["total_ms"] >= limit_ms


def test_expired_work_never_reaches_prefill(small: RawClient) -> None:
    holders = fill(small, 2)
    late = [small.send("infer", greedy(known, timeout_ms=30)) for known in KNOWN[:5]]
    for request in late:
        assert small.response(request)["error"]["data"] == {
            "reason": "deadline_exceeded",
            "retryable": True,
            "started": False,
        }
    cancel(small, holders)


# The bounded queue.


@pytest.mark.slow
def test_a_full_queue_holds_requests_back_in_order_and_serves_all(start: Start, folder: Path) -> None:
    daemon = start("--capacity", "2", *configured(folder, "[queue]\nlimit = 3\n"))
    with daemon.ready().connect() as client:
        requests = {client.send("infer", greedy(known)): known for known in KNOWN[:30]}
        for request, known in requests.items():
            assert client.response(request)["result"]["text"] == known.answer


def test_queue_false_is_refused_when_the_queue_is_full_whatever_the_policy(
    single: RawClient, single_daemon: Daemon
) -> None:
    bound(single_daemon, "limit = 2")
    fill(single, 1)
    for known in KNOWN[:2]:
        single.send("infer", greedy(known))
    error = single.call("infer", greedy(KNOWN[5], queue=False))["error"]
    data = error["data"]
    assert (error["code"], data["why"], data["policy"]) == (1001, "queue full", "block")
    assert (data["queued"], data["queue_limit"]) == (2, 2)
    assert data["retry_after_ms"] >= 1


def test_drop_newest_refuses_the_newcomer(single: RawClient, single_daemon: Daemon) -> None:
    bound(single_daemon, 'limit = 2\noverflow = "drop_newest"')
    holders = fill(single, 1)
    kept = {single.send("infer", greedy(known)): known for known in KNOWN[:2]}
    assert single.call("infer", greedy(KNOWN[5]))["error"]["data"]["why"] == "queue full"
    cancel(single, holders)
    for request, known in kept.items():
        assert single.response(request)["result"]["text"] == known.answer


def test_drop_oldest_drops_waiting_work_of_the_same_or_the_lower_class(
    single: RawClient, single_daemon: Daemon
) -> None:
    bound(single_daemon, 'limit = 2\noverflow = "drop_oldest"')
    holders = fill(single, 1)
    first, second = (single.send("infer", greedy(known)) for known in KNOWN[:2])
    third = single.send("infer", greedy(KNOWN[2]))
    dropped = single.response(first)["error"]["data"]
    assert (dropped["why"], dropped["policy"]) == ("dropped oldest", "drop_oldest")
    low = single.call("infer", greedy(KNOWN[3], priority="throughput"))["error"]["data"]
    assert low["why"] == "queue full"
    cancel(single, holders)
    assert single.response(second)["result"]["text"] == KNOWN[1].answer
    assert single.response(third)["result"]["text"] == KNOWN[2].answer


def test_an_invalid_request_drops_nobody(single: RawClient, single_daemon: Daemon) -> None:
    bound(single_daemon, 'limit = 1\noverflow = "drop_oldest"')
    holders = fill(single, 1)
    waiter = single.send("infer", greedy(KNOWN[0]))
    assert single.reason("infer", {"tokens": [10_000_000]}) == "invalid_params"
    assert single.reason("infer", {"prompt": "x" * 4_000_000}) == "context_exceeded"
    cancel(single, holders)
    assert single.response(waiter)["result"]["text"] == KNOWN[0].answer


@pytest.mark.slow
def test_a_burst_of_ten_times_the_bound_is_refused_fast_and_nothing_is_lost(start: Start, folder: Path) -> None:
    daemon = start("--capacity", "2", *configured(folder, '[queue]\noverflow = "drop_newest"\n'))
    refusals: list[float] = []
    answered = []

    def burst(number: int) -> None:
        with daemon.connect() as client:
            sent = {client.send("infer", greedy(KNOWN[number % 8])): time.monotonic() for _ in range(40)}
            for _ in sent:
                message = client.receive()
                answered.append(message["id"])
                if "error" in message:
                    assert message["error"]["data"]["reason"] == "overloaded"
                    refusals.append(time.monotonic() - sent[message["id"]])

    daemon.ready()
    with ThreadPoolExecutor(16) as threads, daemon.connect() as watcher:
        bursts = [threads.submit(burst, number) for number in range(16)]
        probes = []
        while not all(one.done() for one in bursts):
            asked = time.monotonic()
            watcher.result("inference/capacity")
            probes.append(time.monotonic() - asked)
        for one in bursts:
            one.result()
        totals = watcher.result("daemon/status")["totals"]
    assert len(answered) == 640
    assert refusals
    assert totals["received"] == totals["completed"] + totals["rejected"] == 641
    # The load generator shares the cores and the interpreter with sixteen threads: this bounds stalls, not speed.
    assert sorted(probes)[int(len(probes) * 0.99)] < sum(probes) / 4


# The order of leases.


def test_latency_critical_work_overtakes_waiting_throughput_work(small: RawClient) -> None:
    holders = fill(small, 2)
    slow = [small.send("infer", endless(priority="throughput", max_tokens=100)) for _ in range(4)]
    urgent = small.send("infer", greedy(KNOWN[0]))
    small.result("tokenize", {"text": "what is answered after it is prepared after it"})
    cancel(small, holders)
    waited = small.response(urgent)["result"]["timings"]["queue_ms"]
    assert all(waited <= small.response(request)["result"]["timings"]["queue_ms"] for request in slow)


def test_a_parked_stream_continues_and_its_text_is_that_of_an_undisturbed_run(
    single: RawClient, single_daemon: Daemon
) -> None:
    with single_daemon.connect() as other:
        for known in LONG:
            stream = single.send("infer_stream", greedy(known, priority="throughput"))
            text = single.first_chunk(stream)["text"]
            assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
            while "result" not in (message := single.receive()):
                text += message["params"]["text"]
            assert text == known.answer


@pytest.mark.slow
def test_urgent_work_parks_endless_work_and_no_request_is_parked_more_than_twice(
    single: RawClient, single_daemon: Daemon
) -> None:
    with single_daemon.connect() as other:
        stream = fill(single, 1, priority="throughput", max_tokens=800)[0]
        for known in KNOWN[:2]:
            answer = other.result("infer", greedy(known))
            assert answer["text"] == known.answer
            capacity = other.result("inference/capacity")
            assert capacity["in_use"] + capacity["parked"] == 1, "the endless work ended before"
        third = other.send("infer", greedy(KNOWN[2]))
        assert single.response(stream)["result"]["usage"]["completion_tokens"] == 800
        assert other.response(third)["result"]["text"] == KNOWN[2].answer


def test_a_parked_request_is_cancelled_at_once(single: RawClient, single_daemon: Daemon) -> None:
    with single_daemon.connect() as other:
        stream = fill(single, 1, priority="throughput")[0]
        urgent = other.send("infer_stream", endless())
        other.first_chunk(urgent)
        assert other.result("inference/capacity")["parked"] == 1
        cancel(single, [stream])
        assert single.response(stream)["error"]["data"]["reason"] == "cancelled"
        assert other.result("inference/capacity")["parked"] == 0
        cancel(other, [urgent])


@pytest.mark.slow
def test_parked_work_that_does_not_fit_the_store_is_computed_again(start: Start, folder: Path) -> None:
    daemon = start("--capacity", "1", *configured(folder, "[scheduler]\nsaved_bytes = 0\n"))
    with daemon.ready().connect() as client, daemon.connect() as other:
        known = LONG[1]
        stream = client.send("infer_stream", greedy(known, priority="throughput"))
        text = client.first_chunk(stream)["text"]
        assert other.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        while "result" not in (message := client.receive()):
            text += message["params"]["text"]
    assert text == known.answer


def test_a_newer_request_supersedes_the_older_one_with_its_key(small: RawClient) -> None:
    older = small.send("infer_stream", endless(supersede="line 7"))
    small.first_chunk(older)
    other_key = small.send("infer", greedy(KNOWN[1], supersede="line 8"))
    newer = small.send("infer", greedy(KNOWN[0], supersede="line 7"))
    error = small.response(older)["error"]
    assert (error["code"], error["data"]["superseded"]) == (-32800, True)
    assert small.response(newer)["result"]["text"] == KNOWN[0].answer
    assert small.response(other_key)["result"]["text"] == KNOWN[1].answer


def test_keys_of_another_connection_supersede_nothing(small: RawClient, small_daemon: Daemon) -> None:
    older = small.send("infer", greedy(LONG[0], supersede="key"))
    with small_daemon.connect() as other:
        assert other.result("infer", greedy(KNOWN[0], supersede="key"))["text"] == KNOWN[0].answer
    assert small.response(older)["result"]["text"] == LONG[0].answer


def test_a_key_of_the_program_counts_on_its_other_connections_for_the_same_tenant(
    small: RawClient, small_daemon: Daemon
) -> None:
    same: Json = {"supersede": "key", "supersede_scope": "program", "tenant": "anna"}
    older = small.send("infer_stream", endless(**same))
    small.first_chunk(older)
    with small_daemon.connect() as other:
        for spares in ({"tenant": "bob"}, {"supersede": "other key"}, {"supersede_scope": "connection"}):
            assert other.result("infer", greedy(KNOWN[0], **same | spares))["text"] == KNOWN[0].answer
        assert other.result("daemon/status")["totals"]["in_flight"] == 1, "the older request ended"
        assert other.result("infer", greedy(KNOWN[0], **same))["text"] == KNOWN[0].answer
    assert small.response(older)["error"]["data"]["superseded"] is True


def test_progress_has_position_and_prefill(single: RawClient, single_daemon: Daemon) -> None:
    with single_daemon.connect() as holder:
        holders = fill(holder, 1)
        single.send("infer", greedy(KNOWN[0]))
        prompt: Json = {"tokens": [300] * 3000, "cache_prompt": False}
        waiter = single.send("infer_stream", {**prompt, "max_tokens": 1, "progress": True})
        first = single.receive()
        assert first["method"] == "infer_stream/progress"
        assert (first["params"]["phase"], first["params"]["position"]) == ("queued", 1)
        assert first["params"]["eta_ms"] > 0
        cancel(holder, holders)
        seen: list[Json] = []
        while (message := single.receive()).get("id") != waiter:
            if message.get("method") == "infer_stream/progress":
                seen.append(message["params"])
    assert [one["position"] for one in seen if one["phase"] == "queued"] == [0]
    done = [one["done"] for one in seen if one["phase"] == "prefill"]
    assert done == sorted(set(done))
    assert done[-1] == 3000
    assert all(one["total"] == 3000 for one in seen if one["phase"] == "prefill")


# Fairness.


@pytest.mark.slow
def test_a_flood_of_one_client_does_not_hold_up_another(start: Start) -> None:
    daemon = start("--capacity", "2")
    with daemon.ready().connect() as flooder, daemon.connect() as polite:
        for _ in range(60):
            flooder.send("infer", endless(max_tokens=60, client="flooder"))
        for known in KNOWN[:5]:
            polite.result("infer", greedy(known, client="polite", max_tokens=8))
        done = polite.result("daemon/status")["totals"]["completed"]
        assert done < 40, "the polite client waited for most of the flood"


@pytest.mark.slow
def test_four_greedy_clients_share_the_tokens_evenly(start: Start) -> None:
    daemon = start("--capacity", "4").ready()
    stop = threading.Event()
    served = [0] * 4

    def greedy_client(number: int) -> None:
        with daemon.connect() as client:
            length = (20, 40, 80, 120)[number]
            open_requests = 0
            while not stop.is_set():
                while open_requests < 8:
                    client.send("infer", endless(max_tokens=length, client=f"client {number}"))
                    open_requests += 1
                served[number] += client.receive()["result"]["usage"]["completion_tokens"]
                open_requests -= 1
                if sum(served) > 12_000:
                    stop.set()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(greedy_client, range(4)))
    jain = sum(served) ** 2 / (4 * sum(one * one for one in served))
    assert jain >= 0.95, served


# Cancelling.


@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
def test_a_cancel_in_any_state_frees_the_sequence_and_is_answered_once(
    single: RawClient, single_daemon: Daemon, state: str
) -> None:
    with single_daemon.connect() as other:
        holders = fill(other, 1) if state == "queued" else []
        prompt: Json = {"tokens": [300] * 4000, "max_tokens": 90, "cache_prompt": False}
        request = single.send("infer_stream", prompt if state == "prefill" else endless())
        if state == "decode":
            single.first_chunk(request)
        elif state == "prefill":
            while not other.result("daemon/status")["sequences"]:
                pass
        cancel(single, [request])
        assert single.response(request)["error"]["data"]["reason"] == "cancelled"
        cancel(other, holders)
        assert single.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_thousand_cancels_raced_against_completion_give_a_thousand_answers(daemon: Daemon) -> None:
    with daemon.connect() as client:
        for _ in range(20):
            requests = [client.send("infer", {"prompt": "Hi", "max_tokens": 1 + n % 4}) for n in range(50)]
            cancel(client, requests)
            outcomes = [client.response(request) for request in requests]
            assert all("result" in one or one["error"]["code"] == -32800 for one in outcomes)
    daemon.wait_until_idle()
    with daemon.connect() as client:
        totals = client.result("daemon/status")["totals"]
        assert totals["in_flight"] == 0
        assert totals["received"] == sum(totals.values()) - totals["received"]


# Configuration.


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[queue]\noverflow = "explode"\n', "queue.overflow"),
        ("[queue]\nlimit = -1\n", "queue.limit"),
        ('[capacity]\npolicy = "guess"\n', "capacity.policy"),
        ("[scheduler]\nage_after_s = -1\n", "scheduler.age_after_s"),
        ("[pressure]\nsome_available = 0\n", "pressure.some_available"),
        ("[queue]\nlimti = 3\n", "queue.limti"),
    ],
)
def test_a_bad_policy_or_bound_is_a_configuration_error_with_the_keys_name(folder: Path, text: str, key: str) -> None:
    daemon = Daemon(folder, *configured(folder, text))
    assert daemon.process.wait(timeout=PATIENCE_S) == 78
    assert key in daemon.log.read_text().replace("$.", "")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["measured", "memory", "ram_tiers", "ram_per_8gb"])
def test_every_policy_declares_by_its_name(folder: Path, policy: str) -> None:
    flags = configured(folder, f'[capacity]\npolicy = "{policy}"\n')
    with running(folder, *flags) as daemon, daemon.ready().connect() as client:
        capacity = client.result("inference/capacity")
    assert capacity["policy"] == policy
    assert capacity["capacity"] == capacity["declared"] >= 1


# Queues.


def test_a_class_that_holds_four_fifths_of_the_queue_is_unhealthy(single: RawClient, single_daemon: Daemon) -> None:
    bound(single_daemon, "limit = 5")
    holders = fill(single, 1)
    health = []
    for _ in range(4):
        single.send("infer", greedy(KNOWN[0], priority="throughput"))
        health.append(single.result("daemon/status")["queue"]["healthy"])
    status = single.result("daemon/status")
    assert health == [True, True, True, False]
    assert (status["queue"]["throughput"], status["queue"]["latency_critical"]) == (4, 0)
    assert status["totals"]["in_flight"] == 5
    cancel(single, holders)


def test_streams_go_through_the_same_queue_and_priority_as_single_answers(small: RawClient) -> None:
    holders = fill(small, 2)
    kinds = ["infer_stream", "infer"] * 3
    requests = [small.send(kind, greedy(known)) for kind, known in zip(kinds, KNOWN[:6], strict=True)]
    background = small.send("infer_stream", greedy(LONG[0], priority="throughput"))
    assert small.result("inference/capacity")["queued"] == 7
    small.result("tokenize", {"text": "what is answered after it is prepared after it"})
    cancel(small, holders)
    waits = [small.response(request)["result"]["timings"]["queue_ms"] for request in [*requests, background]]
    assert waits[-1] == max(waits)
