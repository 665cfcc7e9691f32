"""Metrics as Prometheus text, with names and units by its conventions, and the histograms of latencies."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from car_base.ipc.types import PHASES
from car_protocol.status import Status
from car_protocol.usage import Amounts

if TYPE_CHECKING:
    from prometheus_client import Metric

# Upper bounds in seconds, from a tenth of a millisecond to minutes.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Histogram:
    """Counts of values by BOUNDS, with one more for values above the last bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # of values up to each bound and above the one before it
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} values, {self.sum:.3f} s>"

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Latencies:
    """Latencies of one model's requests."""

    def __init__(self) -> None:
        self.queued = Histogram()  # from arrival to the lease
        self.first_token = Histogram()  # from arrival to the first token
        self.between_tokens = Histogram()
        self.read_again: Counter[str] = Counter()  # tokens of prompts, by reason
        self.decisions = 0
        self.questions: Counter[str] = Counter()  # answered, by type
        self.question_seconds: Counter[str] = Counter()  # from the answer before, or the lease, by type

    def answered(self, kind: str, seconds: float) -> None:
        """Count a question of a decision."""
        self.questions[kind] += 1
        self.question_seconds[kind] += seconds  # type: ignore[assignment]  # a Counter adds floats as well


class TokenClock:
    """Observes the times of one answer's tokens."""

    def __init__(self, latencies: Latencies, arrived: float, clock: Callable[[], float]) -> None:
        self._latencies = latencies
        self._clock = clock
        self.first_at: float | None = None
        self._last = arrived  # the last token's time, before any the request's

    def token(self) -> None:
        """Observe a token now."""
        now = self._clock()
        if self.first_at is None:
            self.first_at = now
            self._latencies.first_token.observe(now - self._last)
        else:
            self._latencies.between_tokens.observe(now - self._last)
        self._last = now


# Gauges of a model's engines: the name without its prefix, the help text, and the member of the status.
_ENGINE_GAUGES = (
    ("engine_resident_memory_bytes", "Memory of the engine process.", "rss_bytes"),
    ("kv_cache_bytes_used", "KV cache used by running requests.", "kv_bytes_used"),
    ("kv_cache_bytes_capacity", "KV cache of all sequences.", "kv_bytes_capacity"),
    ("engine_utilisation_ratio", "Fraction of the time that the engine computes.", "utilisation"),
    ("stored_cells_bytes", "Files of prefixes in cache_dir.", "stored_bytes"),
    ("decode_tokens_per_second", "Tokens sampled a second, lately.", "decode_tokens_per_s"),
    ("prefill_tokens_per_second", "Prompt tokens computed a second, lately.", "prefill_tokens_per_s"),
)
_ENGINE_COUNTERS = (
    ("engine_restarts", "Engines started in place of a dead one.", "restarts"),
    ("prefix_cache_hits", "Requests that found a part of their prompt in the cache.", "cache_hits"),
    ("prefix_cache_tokens", "Prompt tokens found in the cache.", "cached_tokens"),
    ("computed_prompt_tokens", "Tokens of prompts and texts computed.", "computed_tokens"),
    ("sampled_tokens", "Tokens of answers.", "sampled_tokens"),
    ("stored_prefix_hits", "Requests that went on from a file of cache_dir.", "stored_hits"),
    ("evicted_sequences", "Cached prefixes evicted from their sequence.", "evicted_sequences"),
    ("restored_tokens", "Tokens of parked requests whose cells came back.", "restored_tokens"),
    ("recomputed_tokens", "Tokens of parked requests that were computed again.", "recomputed_tokens"),
)
# Counters of guesses: the name, the help text and the member.
_GUESSES = (
    ("guessed_tokens", "Tokens that were tried before they were known.", "lookup_tried"),
    ("right_guesses", "Tokens that were tried and were right.", "lookup_right"),
)
# Counters of usage: the name, the help text, a label, and by its values members of the amounts.
_USAGE: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "requests",
        "Requests by app and outcome, while there are people.",
        "outcome",
        {each: each for each in ("completed", "failed", "cancelled", "rejected")},
    ),
    (
        "tokens",
        "Tokens by app: of prompts found in the cache or computed, and of answers.",
        "kind",
        {each: f"{each}_tokens" for each in ("cached", "computed", "completion")},
    ),
    ("device_seconds", "Seconds of engines' steps by app.", "", {"": "device_s"}),
    ("wait_seconds", "Seconds without a sequence by app.", "", {"": "waited_s"}),
)
_HISTOGRAMS = (
    ("queue_seconds", "Time from arrival to a lease.", "queued"),
    ("time_to_first_token_seconds", "Time from arrival to the first token.", "first_token"),
    ("inter_token_seconds", "Time between two tokens of one answer.", "between_tokens"),
)
_QUESTIONS = (
    ("questions", "Questions of decisions that were answered.", "questions"),
    ("question_seconds", "Time of questions, from the answer before or the lease.", "question_seconds"),
)
_BUCKETS = (*map(str, BOUNDS), "+Inf")


class Metrics:
    """Text from a status, the numbers of connections and of leased sequences, and the latencies of every model."""

    def __init__(
        self,
        describe: Callable[[], Status],
        connections: Callable[[], int],
        leased: Callable[[], int],
        latencies: Mapping[str, Latencies],
        usage: Mapping[tuple[str, str], Amounts],
    ) -> None:
        self._describe = describe
        self._usage = usage  # by app and identity
        self._connections = connections
        self._leased = leased
        self._latencies = latencies

    def text(self, *, usage: bool = True) -> str:
        """Return the metrics in Prometheus' text format; without `usage` no app and no person is named."""
        # Imported late, because the import is expensive and a daemon without scrapes never needs it.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        series = self._usage if usage else {}
        registry.register(_Collector(self._describe(), self._connections(), self._leased(), self._latencies, series))
        return generate_latest(registry).decode()

    def page(self) -> tuple[str, str]:
        """Return content type and text, for HTTP."""
        from prometheus_client import CONTENT_TYPE_LATEST

        return CONTENT_TYPE_LATEST, self.text()


class _Collector:
    """Metric families of one status."""

    def __init__(
        self,
        status: Status,
        connections: int,
        leased: int,
        latencies: Mapping[str, Latencies],
        usage: Mapping[tuple[str, str], Amounts],
    ) -> None:
        self._usage = usage
        self._status = status
        self._connections = connections
        self._leased = leased
        self._latencies = latencies

    def collect(self) -> Iterator["Metric"]:
        """Yield all families."""
        yield from self._requests()
        yield from self._engines()
        yield self._read_again()
        yield from self._waits()
        yield from self._decisions()
        yield from self._taken()

    def _requests(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals, queue = self._status.totals, self._status.queue
        requests = CounterMetricFamily("card_requests", "Requests by outcome.", labels=["outcome"])
        for outcome in ("completed", "failed", "cancelled", "rejected"):
            requests.add_metric([outcome], getattr(totals, outcome))
        yield requests
        yield GaugeMetricFamily("card_requests_in_flight", "Requests without an answer yet.", totals.in_flight)
        waiting = GaugeMetricFamily("card_queue_requests", "Waiting requests by class.", labels=["class"])
        waiting.add_metric(["latency_critical"], queue.latency_critical)
        waiting.add_metric(["throughput"], queue.throughput)
        yield waiting
        yield GaugeMetricFamily("card_connections", "Open connections.", self._connections)
        yield GaugeMetricFamily(
            "card_event_loop_lag_seconds", "Lag of the daemon's event loop.", self._status.loop_lag_ms / 1000
        )

    def _engines(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        capacity = GaugeMetricFamily("card_capacity_sequences", "Requests that may run at once now.", labels=["model"])
        for model in self._status.models:
            capacity.add_metric([model.name], model.capacity)
        yield capacity
        # The status has this machine's engines; engines on other machines count here too.
        yield GaugeMetricFamily("card_sequences_in_use", "Sequences leased now, on all machines.", self._leased)
        for kind, table in ((GaugeMetricFamily, _ENGINE_GAUGES), (CounterMetricFamily, _ENGINE_COUNTERS)):
            for name, meaning, member in table:
                family = kind(f"card_{name}", meaning, labels=["model"])
                for model in self._status.models:
                    family.add_metric([model.name], float(sum(getattr(each, member) for each in model.engines)))
                yield family
        for name, meaning, member in _GUESSES:
            family = CounterMetricFamily(f"card_{name}", meaning, labels=["model", "source"])
            for model in self._status.models:
                tokens = sum(getattr(each, member) for each in model.engines)
                family.add_metric([model.name, "lookup"], float(tokens))
            yield family
        seconds = CounterMetricFamily("card_engine_seconds", "Duration of steps by phase.", labels=["model", "phase"])
        for model in self._status.models:
            for phase in PHASES:
                seconds.add_metric([model.name, phase], sum(engine.seconds[phase] for engine in model.engines))
        yield seconds

    def _read_again(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        meaning = "Prompt tokens that were computed again, by reason."
        family = CounterMetricFamily("card_read_again_tokens", meaning, labels=["model", "reason"])
        for model, latencies in self._latencies.items():
            for reason, tokens in latencies.read_again.items():
                family.add_metric([model, reason], tokens)
        return family

    def _decisions(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily

        decisions = CounterMetricFamily("card_decisions", "Decisions that were answered.", labels=["model"])
        for model, latencies in self._latencies.items():
            decisions.add_metric([model], latencies.decisions)
        yield decisions
        for name, meaning, member in _QUESTIONS:
            family = CounterMetricFamily(f"card_{name}", meaning, labels=["model", "type"])
            for model, latencies in self._latencies.items():
                for kind, value in getattr(latencies, member).items():
                    family.add_metric([model, kind], value)
            yield family

    def _taken(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily

        for name, meaning, label, members in _USAGE:
            labels = ["app", "identity", *([label] if label else [])]
            family = CounterMetricFamily(f"card_usage_{name}", meaning, labels=labels)
            for (app, identity), amounts in self._usage.items():
                for value, member in members.items():
                    family.add_metric([app, identity, *([value] if label else [])], getattr(amounts, member))
            yield family

    def _waits(self) -> Iterator["Metric"]:
        from prometheus_client.core import HistogramMetricFamily

        for name, meaning, member in _HISTOGRAMS:
            family = HistogramMetricFamily(f"card_{name}", meaning, labels=["model"])
            for model, latencies in self._latencies.items():
                histogram: Histogram = getattr(latencies, member)
                buckets = list(zip(_BUCKETS, map(float, accumulate(histogram.counts)), strict=True))
                family.add_metric([model], buckets=buckets, sum_value=histogram.sum)
            yield family
