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
USAGE: dict[str, Any] = {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 0}
DECISION: dict[str, Any] = {
    "model": "guide",
    "answers": [
        {
            "type": "choice",
            "name": "team",
            "choice": "billing",
            "probabilities": [0.75, 0.25],
            "confidence": 0.5,
            "mass": 0.9,
        },
        {
            "type": "score",
            "name": "urgency",
            "score": 1.2,
            "probabilities": [0.2, 0.4, 0.4],
            "confidence": 0.25,
            "mass": 0.8,
        },
        {
            "type": "predicate",
            "name": "the customer is angry",
            "probability": 0.9,
            "probabilities": [0.9, 0.1],
            "mass": 0.7,
        },
    ],
    "usage": {"prompt_tokens": 90, "cached_tokens": 60, "computed_tokens": 30, "answer_tokens": 0},
    "timings": {"queue_ms": 0.1, "compute_ms": 20.0, "total_ms": 20.1},
}
EMBEDDINGS: dict[str, Any] = {"embeddings": [[0.6, 0.8], [1.0, 0.0]], "model": "guide", "usage": USAGE}
RANKING: dict[str, Any] = {
    "results": [{"index": 1, "score": 0.9}, {"index": 0, "score": -0.5}],
    "model": "guide",
    "usage": USAGE,
}
GIB = 1024**3


def decided(params: dict[str, Any]) -> dict[str, Any]:
    """Return a decision in which the first option or level of each question is likelier than the others."""
    answers = []
    for number, question in enumerate(params["questions"]):
        labels = question.get("options") or question.get("levels") or [None, None]
        shares = [0.75, *[0.25 / (len(labels) - 1)] * (len(labels) - 1)]
        answer = {"type": question["type"], "name": str(number), "probabilities": shares, "mass": 0.9}
        figures: dict[str, dict[str, Any]] = {
            "choice": {"choice": (labels[0] or {}).get("value"), "confidence": 0.5},
            "score": {"score": 0.25, "confidence": 0.5},
            "predicate": {"probability": 0.75},
        }
        answers.append(answer | figures[question["type"]])
    usage = {"prompt_tokens": 30, "cached_tokens": 12, "computed_tokens": 18, "answer_tokens": 0}
    timings = {"queue_ms": 1.0, "compute_ms": 2.0, "total_ms": 3.0}
    return {"model": "guide", "answers": answers, "usage": usage, "timings": timings}


FILE: dict[str, Any] = {
    "architecture": "llama",
    "parameters": 7_000_000_000,
    "file_type": 15,
    "context_length": 131072,
    "embedding_length": 4096,
    "block_count": 32,
    "vocabulary": 32000,
    "memory": "hybrid",
    "unused_layers": 1,
    "parts": 2,
    "warnings": ["tensor type 77 is unknown to this version (1 of 9 tensors)"],
    "chat_template": "{% for message in messages %}\n\x1b[31m{{ message }}\n{% endfor %}\n",
    "tool_style": "hermes",
    "thinking_tags": ["<think>", "</think>"],
    "metadata": {
        "general.name": "A model\x07 " + "with a long name " * 5,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.tokens": {"count": 32000},
        "tokenizer.ggml.add_bos_token": True,
    },
}
ESTIMATE: dict[str, Any] = {
    "weights_bytes": 4 * GIB,
    "other_bytes": GIB // 8,
    "context_tokens": 8192,
    "kv_bytes_per_sequence": GIB,
    "free_bytes": 16 * GIB,
    "sequences": 2,
    "most_sequences": 10,
    "offers": [{"sequences": 4, "context_tokens": 32768}, {"sequences": 16, "context_tokens": 8192}],
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
        "version": "0.3.0",
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
        "aliases": [],
        "defaults": {},
        "can": list(can),
        "device": "cpu",
        "replicas": 1,
        "place": "here",
        "up": 1,
    }


def details(**changes: Any) -> dict[str, Any]:
    """Return the answer of `models/show` for the guide."""
    return {"model": model(), "file": FILE, "estimate": ESTIMATE, **changes}


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
        "computed_tokens": 900,
        "sampled_tokens": 400,
        "evicted_sequences": 0,
        "saved_bytes": 0,
        "stored_hits": 0,
        "stored_bytes": 0,
        "restored_tokens": 0,
        "recomputed_tokens": 0,
        "lookup_tried": 12,
        "lookup_right": 9,
        "utilisation": 0.25,
        "sandbox": ["not dumpable", "no new privileges", "few capabilities", "landlock 7", "seccomp"],
        "memory": {
            "private_bytes": 3 * 1024**3,
            "private_limit_bytes": 5 * 1024**3,
            "virtual_bytes": 6 * 1024**3,
            "virtual_limit_bytes": 12 * 1024**3,
        },
        "devices": [],
        "host_experts": 0,
        "host": None,
        "seconds": {"decode": 1.5, "sample": 0.1},
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
        "version": "0.3.0",
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
        "waiting": [],
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


def busy_status() -> dict[str, Any]:
    """Return a status object of a daemon under load: two models, a queue, parked work and six clients."""
    calm = status("/run/user/1000/car/card.sock")
    (guide,) = calm["models"]
    (engine,) = guide["engines"]
    second = model(name="embedder-small", can=("embed",)) | {"capacity": 2, "device": "gpu 0"}
    unloaded = model(name="storyteller-30b") | {"state": "unloaded"}
    clients = ["editor", "mail indexer", "notes", "shell", "search", None]
    return calm | {
        "capacity": capacity(8) | {"in_use": 7, "available": 1, "parked": 2, "queued": 6},
        "models": [
            guide | {"capacity": 8, "engines": [engine | {"sequences": 8, "decode_tokens_per_s": 1234.5}]},
            second | {"engines": [engine | {"restarts": 2, "rss_bytes": 3 * 1024**3, "device": "gpu 0"}]},
            unloaded | {"engines": []},
        ],
        "queue": {"latency_critical": 2, "throughput": 4, "oldest_wait_ms": 4321.0, "healthy": True},
        "sequences": [_sequence(number, clients[number % 6]) for number in range(6)],
        "connections": [_connection(number, client) for number, client in enumerate(clients)],
        "waiting": [
            _waiting(0, "editor", "sequence", requests=2, oldest_ms=4321.0),
            _waiting(7, "summarizer", "place", requests=3, oldest_ms=800.0),
            _waiting(1, "mail indexer", "turn", requests=1, oldest_ms=90.0),
        ],
        "totals": {"received": 95, "completed": 70, "failed": 1, "cancelled": 9, "rejected": 2, "in_flight": 13},
        "memory": {"total": 16 * 1024**3, "available": 3 * 1024**3, "pressure": "some"},
    }


def _sequence(number: int, client: str | None) -> dict[str, Any]:
    label = {"client": client} if client else {}
    return label | {
        "model": "guide",
        "sequence": number,
        "phase": "prefill" if number > 3 else "decode",
        "uid": 1000,
        "connection": number,
        "id": number,
        "prompt_tokens": 10 * (number + 1),
        "done_tokens": 1000 * (number % 3),
        "age_ms": 700.0 * (number + 1),
    }


def _waiting(connection: int, client: str, awaits: str, **more: Any) -> dict[str, Any]:
    return {"model": "guide", "uid": 1000, "connection": connection, "client": client, "awaits": awaits, **more}


def _connection(number: int, client: str | None) -> dict[str, Any]:
    label = {"client": client} if client else {}
    return label | {
        "connection": number,
        "uid": 1000,
        "pid": 5000 + number,
        "in_flight": number % 4,
        "tokens_served": 12_345 * number,
    }
