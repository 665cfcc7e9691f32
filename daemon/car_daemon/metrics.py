"""What the daemon counts, as Prometheus text; names and units by Prometheus' conventions."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from car_daemon.engine.laps import PHASES
from car_daemon.latencies import BOUNDS, Histogram, Latencies
from car_protocol.status import ModelStatus, Status

if TYPE_CHECKING:
    from prometheus_client import Metric

# Gauges of a model's engine: the name without its prefix, what it means, and where the status has it.
_ENGINE_GAUGES = (
    ("engine_resident_memory_bytes", "Memory of the engine process.", "rss_bytes"),
    ("kv_cache_bytes_used", "KV cache that running requests fill.", "kv_bytes_used"),
    ("kv_cache_bytes_capacity", "KV cache of all sequences.", "kv_bytes_capacity"),
    ("engine_utilisation_ratio", "Share of the time that the engine computes.", "utilisation"),
    ("decode_tokens_per_second", "Tokens sampled a second, lately.", "decode_tokens_per_s"),
    ("prefill_tokens_per_second", "Prompt tokens computed a second, lately.", "prefill_tokens_per_s"),
)
_ENGINE_COUNTERS = (
    ("engine_restarts", "Engines started in place of one that died.", "restarts"),
    ("prefix_cache_hits", "Requests that were spared a part of their prompt.", "cache_hits"),
    ("prefix_cache_tokens", "Prompt tokens that were not computed again.", "cached_tokens"),
    ("evicted_sequences", "Prefixes that had to leave their sequence.", "evicted_sequences"),
)
_HISTOGRAMS = (
    ("queue_seconds", "Time from arrival to a lease.", "queued"),
    ("time_to_first_token_seconds", "Time from arrival to the first token.", "first_token"),
    ("inter_token_seconds", "Time between two tokens of one answer.", "between_tokens"),
)


class Metrics:
    """Writes the text from a status and the latencies of every model."""

    def __init__(self, describe: Callable[[], Status], latencies: Mapping[str, Latencies]) -> None:
        self._describe = describe
        self._latencies = latencies

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        # Imported late: a daemon whose metrics nobody reads need not pay for it at its start.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Collector(self._describe(), self._latencies))
        return generate_latest(registry).decode()

    def page(self) -> tuple[str, str]:
        """Return content type and text, for readers that speak HTTP."""
        from prometheus_client import CONTENT_TYPE_LATEST

        return CONTENT_TYPE_LATEST, self.text()


class _Collector:
    """One reading, as metric families."""

    def __init__(self, status: Status, latencies: Mapping[str, Latencies]) -> None:
        self._status = status
        self._latencies = latencies

    def collect(self) -> Iterator["Metric"]:
        """Yield every family."""
        yield from self._requests()
        yield from self._models()
        yield from self._engines()
        yield from self._waits()

    def _requests(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals, queue = self._status.totals, self._status.queue
        requests = CounterMetricFamily("card_requests", "Requests by outcome.", labels=["outcome"])
        for outcome in ("completed", "failed", "cancelled", "rejected"):
            requests.add_metric([outcome], getattr(totals, outcome))
        yield requests
        yield GaugeMetricFamily("card_requests_in_flight", "Requests without an answer yet.", totals.in_flight)
        waiting = GaugeMetricFamily("card_queue_requests", "Requests that wait, by class.", labels=["class"])
        waiting.add_metric(["latency_critical"], queue.latency_critical)
        waiting.add_metric(["throughput"], queue.throughput)
        yield waiting
        yield GaugeMetricFamily("card_connections", "Open connections.", len(self._status.connections))
        yield GaugeMetricFamily(
            "card_event_loop_lag_seconds", "How late the daemon's loop runs.", self._status.loop_lag_ms / 1000
        )

    def _models(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        capacity = GaugeMetricFamily("card_capacity_sequences", "Requests that run at once now.", labels=["model"])
        for model in self._status.models:
            capacity.add_metric([model.name], model.capacity)
        yield capacity
        yield GaugeMetricFamily("card_sequences_in_use", "Sequences leased now.", self._status.capacity.machine.in_use)

    def _engines(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for kind, table in ((GaugeMetricFamily, _ENGINE_GAUGES), (CounterMetricFamily, _ENGINE_COUNTERS)):
            for name, meaning, member in table:
                family = kind(f"card_{name}", meaning, labels=["model"])
                for model in self._status.models:
                    family.add_metric([model.name], _sum(model, member))
                yield family
        seconds = CounterMetricFamily("card_engine_seconds", "What steps took, by phase.", labels=["model", "phase"])
        for model in self._status.models:
            for phase, passed in _phases(model).items():
                seconds.add_metric([model.name, phase], passed)
        yield seconds

    def _waits(self) -> Iterator["Metric"]:
        from prometheus_client.core import HistogramMetricFamily

        for name, meaning, member in _HISTOGRAMS:
            family = HistogramMetricFamily(f"card_{name}", meaning, labels=["model"])
            for model, latencies in self._latencies.items():
                histogram: Histogram = getattr(latencies, member)
                family.add_metric([model], buckets=_buckets(histogram), sum_value=histogram.sum)
            yield family


def _sum(model: ModelStatus, member: str) -> float:
    return float(sum(getattr(engine, member) for engine in model.engines))


def _phases(model: ModelStatus) -> dict[str, float]:
    return {phase: sum(engine.seconds[phase] for engine in model.engines) for phase in PHASES}


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*(str(bound) for bound in BOUNDS), "+Inf"]
    return list(zip(names, map(float, accumulate(histogram.counts)), strict=True))
