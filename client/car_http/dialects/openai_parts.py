"""The parts of OpenAI's objects that chat and completions share."""

import secrets
from collections.abc import Sequence
from typing import Any

from car_client.results import Answer, OneAnswer, ToolCallDelta
from car_protocol.answer import Logprob, Progress, Usage

PRIORITIES = {"flex": "throughput", "priority": "latency_critical"}
_FLOOR = -9999.0
_LEAST = -1000.0
_MS_PER_S = 1000


def new_id(prefix: str) -> str:
    """Return a fresh id of an answer."""
    return prefix + secrets.token_hex(12)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage of chat and completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
    }


def usage_of(usages: Sequence[Usage]) -> Usage:
    """Return the sum of what several requests used."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
    )


def answers_of(answer: Answer) -> Sequence[Answer | OneAnswer]:
    """Return the answers to a prompt, in the order of their indexes."""
    return answer.answers or [answer]


def finish_reason(answer: Answer | OneAnswer, *, called: bool) -> str:
    """Return OpenAI's name of the end; a deadline reads as a limit of the length."""
    if answer.finish_reason != "stop":
        return "length"
    return "tool_calls" if called else "stop"


def call_pieces(answer: Answer | OneAnswer) -> list[ToolCallDelta]:
    """Return the calls of a whole answer, each as one piece."""
    return [
        ToolCallDelta(index=index, id=call.id, name=call.function.name, arguments=call.function.arguments)
        for index, call in enumerate(answer.tool_calls or [])
    ]


def card_object(answer: Answer, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return the member `card`: facts that the dialect has no place for, and vendors' tools that were left out."""
    shown: dict[str, Any] = {"finish_reason": answer.finish_reason, "seed": answer.seed, "timings": answer.timings}
    if answer.usage.parted is not None:
        shown["parted"] = answer.usage.parted
    if answer.ignored:
        shown["ignored"] = answer.ignored
    if left_out:
        shown["left_out"] = left_out
    return shown


def progress_object(progress: Progress) -> dict[str, Any]:
    """Return how much of the prompt was read, as llama-server shows it."""
    return {"total": progress.total, "cache": progress.cached or 0, "processed": progress.done, "time_ms": 0}


def timings_object(answer: Answer) -> dict[str, Any]:
    """Return the times of the prompt and of the answer as llama-server shows them."""
    usage, timings = answer.usage, answer.timings
    shown = {"cache_n": usage.cached_tokens}
    return (
        shown
        | _rate("prompt", usage.prompt_tokens - usage.cached_tokens, timings.prefill_ms)
        | _rate("predicted", usage.completion_tokens, timings.decode_ms)
    )


def _rate(part: str, tokens: int, ms: float) -> dict[str, Any]:
    each, per_s = (ms / tokens if tokens else 0.0), (tokens * _MS_PER_S / ms if ms else 0.0)
    return {f"{part}_n": tokens, f"{part}_ms": ms, f"{part}_per_token_ms": each, f"{part}_per_second": per_s}


def chat_logprobs(logprobs: Sequence[Logprob] | None) -> dict[str, Any] | None:
    """Return log-probabilities as chat has them."""
    if logprobs is None:
        return None
    return {"content": token_logprobs(logprobs), "refusal": None}


def token_logprobs(logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
    """Return log-probabilities, an object a token."""
    return [
        _choice(each.text, each.logprob) | {"top_logprobs": [_choice(top.text, top.logprob) for top in each.top]}
        for each in logprobs
    ]


def completion_logprobs(logprobs: Sequence[Logprob] | None, start: int = 0) -> dict[str, Any] | None:
    """Return log-probabilities as completions have them; offsets count from `start` characters."""
    if logprobs is None:
        return None
    offsets = []
    for each in logprobs:
        offsets.append(start)
        start += len(each.text)
    return {
        "tokens": [each.text for each in logprobs],
        "token_logprobs": [bounded(each.logprob) for each in logprobs],
        "top_logprobs": [{top.text: bounded(top.logprob) for top in each.top} for each in logprobs],
        "text_offset": offsets,
    }


def _choice(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": bounded(logprob), "bytes": list(text.encode())}


def bounded(logprob: float) -> float:
    """Return OpenAI's figure for a probability of 0 in place of card's."""
    return _FLOOR if logprob <= _LEAST else logprob
