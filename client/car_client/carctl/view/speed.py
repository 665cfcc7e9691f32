"""The tokens and times of an answer as one line."""

from car_client.carctl.terminal.units import duration, rate
from car_client.results import Answer


def speed(answer: Answer) -> str:
    """Return an answer's tokens, times and rates."""
    usage, timings = answer.usage, answer.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    # The first token comes out of the prefill.
    decoded = max(0, usage.completion_tokens - 1)
    parts = [
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached{_rate(computed, timings.prefill_ms)})",
        f"{usage.completion_tokens} generated{_rate(decoded, timings.decode_ms)}",
        f"queue {duration(timings.queue_ms / 1000)}",
        f"first token {duration(timings.ttft_ms / 1000)}",
        f"total {duration(timings.total_ms / 1000)}",
        f"{_ends(answer)}, seed {answer.seed}",
    ]
    return "; ".join(parts)


def _ends(answer: Answer) -> str:
    """Return the reason of the end, or of several answers each different one."""
    reasons: list[str | None] = [each.finish_reason for each in answer.answers or ()] or [answer.finish_reason]
    return "+".join(dict.fromkeys(map(str, reasons)))


def _rate(tokens: int, ms: float) -> str:
    return f", {rate(tokens * 1000 / ms)} tokens/s" if tokens and ms else ""
