"""Metrics that a Prometheus reads, and that agree with what a client measures."""

import time

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.support import RawClient, endless


def samples(client: RawClient) -> dict[tuple[str, str], float]:
    """Return every sample by its name and what tells it from others of that name."""
    text = client.result("daemon/metrics")["text"]
    return {
        (sample.name, "|".join(value for name, value in sorted(sample.labels.items()) if name != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_outcome(client: RawClient) -> None:
    before = samples(client)
    client.result("infer", {"prompt": "x", "max_tokens": 2})
    client.call("infer", {"prompt": "x", "grammar": "bad"})
    after = samples(client)
    grown = {
        outcome: after["card_requests_total", outcome] - before["card_requests_total", outcome]
        for outcome in ("completed", "rejected", "failed")
    }
    assert grown == {"completed": 1, "rejected": 1, "failed": 0}


def test_the_histograms_agree_with_what_a_client_measures(client: RawClient) -> None:
    client.result("infer", {"prompt": "warm", "max_tokens": 2})
    # The client may be late by what the machine does beside; a histogram that is wrong is so each time.
    assert any(agrees(client) for _ in range(8))


def agrees(client: RawClient) -> bool:
    """Return whether the time between tokens is what the client measures of a stream."""
    before = samples(client)
    sent = time.perf_counter()
    request = client.send("infer_stream", endless(max_tokens=300))
    client.first_chunk(request)
    first = time.perf_counter()
    timings = client.response(request)["result"]["timings"]
    took = time.perf_counter() - first
    after = samples(client)
    tokens = after["card_inter_token_seconds_count", ""] - before["card_inter_token_seconds_count", ""]
    between = after["card_inter_token_seconds_sum", ""] - before["card_inter_token_seconds_sum", ""]
    waited = after["card_time_to_first_token_seconds_sum", ""] - before["card_time_to_first_token_seconds_sum", ""]
    assert tokens == 299
    assert abs(waited * 1000 - timings["ttft_ms"]) < 1
    assert waited <= first - sent
    return abs(between - took) < 0.05 * took + 0.1


def test_every_metric_has_a_unit_or_a_meaning_and_the_prefix(client: RawClient) -> None:
    for family in text_string_to_metric_families(client.result("daemon/metrics")["text"]):
        assert family.name.startswith("card_")
        assert family.documentation


def test_every_phase_of_a_step_has_its_seconds(client: RawClient) -> None:
    phases = {phase for name, phase in samples(client) if name == "card_engine_seconds_total"}
    assert phases == {"intake", "plan", "fill", "decode", "prefill", "sample", "text", "send", "embed"}
