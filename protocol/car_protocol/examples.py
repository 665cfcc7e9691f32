"""An example of each method, for the OpenRPC document: params, and a result of the guide, the built-in model.

Only `rerank`, `models/load` and `models/unload` name a model that has to be configured: `reranker`.
"""

from typing import Any

from msgspec import Struct


class Example(Struct, frozen=True):
    """The params of one call and a result of it; of a long list or object the result has the beginning."""

    params: dict[str, Any]
    result: dict[str, Any]


_MESSAGES = [{"role": "user", "content": "What is card?"}]
_ANSWER = {
    "finish_reason": "stop",
    "model": "guide",
    "seed": 1,
    "usage": {"prompt_tokens": 15, "cached_tokens": 0, "completion_tokens": 37},
    "timings": {"queue_ms": 2.1, "prefill_ms": 1.4, "ttft_ms": 6.5, "decode_ms": 8.1, "total_ms": 15.2},
}
_CAPACITY = {
    "capacity": 8,
    "declared": 8,
    "in_use": 0,
    "available": 8,
    "parked": 0,
    "queued": 0,
    "queue_limit": 64,
    "policy": "measured",
    "pressure": "none",
    "state": "ready",
    "model": "guide",
    "context_tokens": 4096,
    "machine": {"limit": None, "in_use": 0},
    "generation": 2,
    "protocol": "1",
    "version": "0.3.0",
    "limits": {"max_frame_bytes": 8_388_608, "max_in_flight": 64, "queue_limit": 64},
}
_GUIDE = {
    "name": "guide",
    "path": "guide.gguf",
    "state": "ready",
    "default": True,
    "pinned": True,
    "size_bytes": 1_079_968,
    "capacity": 8,
    "context_tokens": 4096,
    "adapters": [],
    "can": ["generate", "chat", "decide", "embed"],
    "device": "cpu",
    "replicas": 1,
}
_RERANKER = {
    **_GUIDE,
    "name": "reranker",
    "path": "reranker.gguf",
    "default": False,
    "pinned": False,
    "size_bytes": 457_984,
    "capacity": 32,
    "context_tokens": 512,
    "can": ["rerank"],
}

EXAMPLES: dict[str, Example] = {
    "inference/capacity": Example({}, _CAPACITY),
    "infer": Example(
        {"messages": _MESSAGES, "temperature": 0, "seed": 1},
        {
            "text": "card is a daemon that hosts language models: one process on the machine that all local apps "
            "share, instead of each loading its own copy.",
            **_ANSWER,
        },
    ),
    "infer_stream": Example({"messages": _MESSAGES, "temperature": 0, "seed": 1}, {"chunks": 36, **_ANSWER}),
    "$/cancelRequest": Example({"id": "an id in flight"}, {}),
    "embed": Example(
        {"input": ["a text"]},
        {
            "embeddings": [[0.0805, -0.135, -0.0762]],
            "model": "guide",
            "usage": {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 0},
        },
    ),
    "rerank": Example(
        {"query": "Which one?", "documents": ["That one.", "This one."], "model": "reranker"},
        {
            "results": [{"index": 1, "score": 0.61}, {"index": 0, "score": 0.12}],
            "model": "reranker",
            "usage": {"prompt_tokens": 40, "cached_tokens": 0, "completion_tokens": 0},
        },
    ),
    "decide": Example(
        {
            "state": "The parcel came broken.",
            "questions": [{"type": "predicate", "name": "angry", "instructions": "Is the writer angry?"}],
        },
        {
            "model": "guide",
            "answers": [
                {"type": "predicate", "name": "angry", "probability": 0.9, "probabilities": [0.9, 0.1], "mass": 0.02}
            ],
            "usage": {"prompt_tokens": 94, "cached_tokens": 0, "computed_tokens": 94, "answer_tokens": 0},
            "timings": {"queue_ms": 2.1, "compute_ms": 9.8, "total_ms": 11.9},
        },
    ),
    "tokenize": Example({"text": "What is card?"}, {"tokens": [281, 275, 325, 67], "count": 4}),
    "detokenize": Example({"tokens": [281, 275, 325, 67]}, {"text": "What is card?"}),
    "models/list": Example({}, {"models": [_GUIDE, _RERANKER]}),
    "models/show": Example(
        {"model": "guide"},
        {
            "model": _GUIDE,
            "file": {
                "architecture": "llama",
                "parameters": 984_192,
                "file_type": 7,
                "context_length": 4096,
                "embedding_length": 128,
                "block_count": 4,
                "vocabulary": 1024,
                "parts": 1,
                "chat_template": None,
                "metadata": {"general.license": "MIT", "tokenizer.ggml.tokens": {"count": 1024}},
            },
        },
    ),
    "models/load": Example({"model": "reranker"}, _RERANKER),
    "models/unload": Example(
        {"model": "reranker"}, {**_RERANKER, "state": "unloaded", "capacity": 1, "context_tokens": None}
    ),
    "daemon/status": Example(
        {},
        {
            "version": "0.3.0",
            "protocol": "1",
            "pid": 4711,
            "uptime_s": 4.2,
            "state": "serving",
            "socket": "/run/user/1000/car/card.sock",
            "loop_lag_ms": 0.1,
            "capacity": _CAPACITY,
            "models": [],
            "queue": {"latency_critical": 0, "throughput": 0, "oldest_wait_ms": 0.0, "healthy": True},
            "sequences": [],
            "connections": [{"connection": 1, "uid": 1000, "pid": 4712, "in_flight": 0, "tokens_served": 74}],
            "totals": {"received": 7, "completed": 7, "failed": 0, "cancelled": 0, "rejected": 0, "in_flight": 0},
            "memory": {"total": 33_554_432_000, "available": 20_492_763_648, "pressure": "none"},
        },
    ),
    "daemon/cancel": Example({"connection": 1, "id": "an id in flight"}, {}),
    "daemon/drain": Example({"timeout_ms": 5000}, {"completed": 0, "refused": 0}),
    "daemon/reload": Example({}, {}),
    "daemon/metrics": Example({}, {"text": "# HELP card_requests_total Requests by outcome.\n"}),
    "daemon/why": Example(
        {},
        {
            "prompts": [
                {
                    "id": 2,
                    "connection": 1,
                    "model": "guide",
                    "age_s": 2.5,
                    "prompt_tokens": 412,
                    "cached_tokens": 9,
                    "parted": {
                        "reason": "system",
                        "at": 9,
                        "tokens": 380,
                        "message": 0,
                        "role": "system",
                        "was": "14:05. You answer",
                        "now": "14:06. You answer",
                    },
                }
            ]
        },
    ),
    "daemon/usage": Example(
        {"by": ["person"], "since": "2026-01-01"},
        {
            "since": "2026-01-01",
            "until": "2026-01-31",
            "total": {"completed": 2, "prompt_tokens": 30, "computed_tokens": 30, "completion_tokens": 74},
            "rows": [
                {
                    "person": "anna",
                    "completed": 2,
                    "prompt_tokens": 30,
                    "computed_tokens": 30,
                    "completion_tokens": 74,
                    "device_s": 0.05,
                    "waited_s": 0.01,
                }
            ],
        },
    ),
    "rpc.discover": Example({}, {"openrpc": "1.2.6"}),
}
