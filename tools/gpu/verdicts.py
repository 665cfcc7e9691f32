"""Verdicts of the GPU suite: what was checked, whether it holds, and the figures; pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from benchmarks.report import figure, markdown
from car_protocol.answer import Logprob
from car_protocol.models import DeviceStatus

# Two backends add in other orders: where the likeliest tokens are nearly equal, either may win. In nats, of the
# reference's own probabilities. Bare llama-server parted by up to 0.30 from the CPU with q4_0 on a GPU, card by up to
# 0.38 (NOTES.md); a token of another sequence is none of the five likeliest, which counts as a thousand.
GAP = 0.5
# Of the planned bytes of a device.
MEMORY_PART = 0.05
# Of a device's memory, which other programs and the driver's caches change.
FREED_PART = 0.02
# The least ratio to llama-server's throughput, by streams.
LEAST_RATIO: Mapping[int, float] = {1: 0.95, 8: 1.0, 32: 1.0}
_US = 1e6
# Phases of a step in which llama.cpp computes, or its results are awaited.
_NOT_OURS = frozenset({"decode", "prefill", "embed", "sample"})
_MIB = 1 << 20
_NEVER = -1000.0


class Verdict(Struct, frozen=True):
    """One line of the suite; `holds` is None if it was not checked, and `found` then has the reason."""

    check: str
    holds: bool | None
    found: str


def widest_gap(expected: Sequence[Logprob], found: Sequence[int]) -> float:
    """Return by how much the reference prefers its own token where two answers part; 0 where they are equal."""
    for place, token in zip(expected, found, strict=False):
        if place.token != token:
            choices = {choice.token: choice.logprob for choice in place.top}
            return choices[place.token] - choices.get(token, _NEVER)
    return 0.0


def agreement(check: str, gaps: Sequence[float]) -> Verdict:
    """Return whether answers are those of the reference, apart from tokens that are nearly as likely."""
    equal, widest = sum(gap == 0 for gap in gaps), max(gaps)
    found = f"{equal} of {len(gaps)} equal, widest gap {widest:.3f}, at most {GAP}"
    return Verdict(check, widest <= GAP, found)


def memory(devices: Sequence[DeviceStatus]) -> list[Verdict]:
    """Return whether each device holds what was planned for it."""
    if not devices:
        return [Verdict("memory as planned", None, "no GPU holds a part of the model")]
    return [_memory(device) for device in devices]


def _memory(device: DeviceStatus) -> Verdict:
    part = device.taken_bytes / max(1, device.planned_bytes) - 1
    sizes = f"planned {device.planned_bytes // _MIB} MiB, taken {device.taken_bytes // _MIB} MiB"
    allowed = f"{part:+.1%}, at most {MEMORY_PART:.0%} apart"
    return Verdict(f"memory as planned, {device.name}", abs(part) <= MEMORY_PART, f"{sizes}: {allowed}")


def freed(check: str, before: tuple[int, int] | None, after: tuple[int, int] | None) -> Verdict:
    """Return whether a GPU's memory came back: its free and its total bytes before and after; None without a GPU."""
    if before is None or after is None:
        return Verdict(check, None, "needs a GPU: other programs use the host's memory, too")
    lost, most = max(0, before[0] - after[0]), int(before[1] * FREED_PART)
    return Verdict(check, lost <= most, f"{lost // _MIB} MiB did not come back, at most {most // _MIB}")


class Speed(Struct, frozen=True):
    """Throughput and time to the first token of card and of llama-server, medians over turns.

    A time is None if a turn ended before a request that began in it had its first token.
    """

    case: str
    streams: int
    tokens_per_s: float
    ratio: float
    ttft_ms: float | None
    other_tokens_per_s: float
    other_ttft_ms: float | None


def speed(found: Speed) -> list[Verdict]:
    """Return whether card is as fast as llama-server, in tokens a second and to the first token."""
    least = LEAST_RATIO.get(found.streams, 1.0)
    rates = f"{figure(found.tokens_per_s)} and {figure(found.other_tokens_per_s)} tokens/s"
    rate = Verdict(f"{found.case}: tokens/s", found.ratio >= least, f"{rates}, {found.ratio:.2f} x, at least {least}")
    return [rate, _first_token(f"{found.case}: first token p50", found.ttft_ms, found.other_ttft_ms)]


def _first_token(check: str, ours: float | None, other: float | None) -> Verdict:
    if ours is None or other is None:
        return Verdict(check, None, "no request began and had its token within a turn: measure for longer (--seconds)")
    return Verdict(check, ours <= other, f"{figure(ours)} and {figure(other)} ms")


def own_part(case: str, before: Mapping[str, float], after: Mapping[str, float], tokens: int, streams: int) -> Verdict:
    """Return card's own microseconds of a step, by phase, of an even load; a step has a token of every stream."""
    spent = {phase: after[phase] - before.get(phase, 0.0) for phase in after if phase not in _NOT_OURS}
    each = {phase: seconds / tokens * streams * _US for phase, seconds in spent.items()}
    parts = ", ".join(f"{phase} {us:.0f}" for phase, us in sorted(each.items(), key=lambda part: -part[1]))
    return Verdict(f"{case}: own part of a step", None, f"{sum(each.values()):.0f} us ({parts})")


def table(verdicts: Sequence[Verdict]) -> str:
    """Return one line a verdict."""
    words = {True: "yes", False: "NO", None: "-"}
    return markdown(("check", "holds", "found"), [[each.check, words[each.holds], each.found] for each in verdicts])


def passed(verdicts: Sequence[Verdict]) -> bool:
    """Return whether no check failed."""
    return all(each.holds is not False for each in verdicts)
