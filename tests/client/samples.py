"""Results as a daemon sends them."""

from typing import Any

import msgspec

from car_protocol.limits import Limits

ANSWER: dict[str, Any] = {
    "finish_reason": "stop",
    "model": "guide",
    "seed": 7,
    "usage": {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 2},
    "timings": {"queue_ms": 0.0, "prefill_ms": 1.0, "ttft_ms": 2.0, "decode_ms": 3.0, "total_ms": 5.0},
}


def capacity(figure: int = 4, generation: int = 0) -> dict[str, Any]:
    """Return a capacity object that declares `figure`."""
    return {
        "capacity": figure,
        "declared": figure,
        "in_use": 1,
        "available": figure - 1,
        "parked": 0,
        "queued": 2,
        "queue_limit": 64,
        "policy": "measured",
        "pressure": "none",
        "state": "ready",
        "model": "guide",
        "context_tokens": 2048,
        "machine": {"limit": None, "in_use": 1},
        "generation": generation,
        "protocol": "1",
        "version": "0.1.0",
        "limits": msgspec.to_builtins(Limits()),
        "inputs": {
            "free_bytes": 2**33,
            "kv_bytes_per_sequence": 2**25,
            "tokens_per_s_8": 320.4,
            "tokens_per_s_1": 175.0,
        },
    }


def model(*, name: str = "guide", can: tuple[str, ...] = ("chat",)) -> dict[str, Any]:
    """Return a model's entry; the guide is the default one."""
    return {
        "name": name,
        "path": f"/models/{name}.gguf",
        "state": "ready",
        "default": name == "guide",
        "pinned": True,
        "size_bytes": 3_000_000,
        "capacity": 4,
        "context_tokens": 2048,
        "adapters": [],
        "can": list(can),
        "device": "cpu",
        "replicas": 1,
    }


def status(socket: str) -> dict[str, Any]:
    """Return a status object of one model, one engine and one running request."""
    engine = {
        "pid": 4250,
        "restarts": 0,
        "rss_bytes": 120 * 1024**2,
        "device": "cpu",
        "kv_bytes_used": 1024,
        "kv_bytes_capacity": 4096,
        "sequences": 4,
        "batch_size": 1.5,
        "decode_tokens_per_s": 41.5,
        "prefill_tokens_per_s": 900.0,
        "cache_hits": 3,
        "cached_tokens": 100,
        "evicted_sequences": 0,
        "utilisation": 0.25,
    }
    running = {
        "model": "guide",
        "sequence": 0,
        "phase": "decode",
        "uid": 1000,
        "connection": 3,
        "id": 9,
        "client": "editor",
        "prompt_tokens": 10,
        "done_tokens": 55,
        "age_ms": 1200.0,
    }
    return {
        "version": "0.1.0",
        "protocol": "1",
        "pid": 4242,
        "uptime_s": 7380.0,
        "state": "serving",
        "socket": socket,
        "loop_lag_ms": 0.1,
        "capacity": capacity(),
        "models": [model() | {"engines": [engine]}],
        "queue": {"latency_critical": 2, "throughput": 0, "oldest_wait_ms": 12.0, "healthy": True},
        "sequences": [running],
        "connections": [{"connection": 3, "uid": 1000, "pid": 99, "in_flight": 1, "tokens_served": 55}],
        "totals": {
            "received": 12,
            "completed": 9,
            "failed": 0,
            "cancelled": 1,
            "rejected": 1,
            "in_flight": 1,
        },
        "memory": {"total": 16 * 1024**3, "available": 12 * 1024**3, "pressure": "none"},
    }
