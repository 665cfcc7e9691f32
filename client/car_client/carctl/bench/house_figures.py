"""What the apps of a house keep of their speed when all are there, from the requests of the phases."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import takewhile
from math import inf, isfinite
from typing import get_args

from msgspec import Struct

from car_client.carctl.bench.figures import percentile
from car_client.carctl.bench.house_apps import App
from car_client.carctl.bench.house_run import HousePhase, Outcome, Sent, Stay


class Times(Struct, frozen=True):
    """Percentiles of times in ms; None if so many requests were never answered."""

    p50: float | None
    p95: float | None


class AppFigures(Struct, frozen=True):
    """An app in one phase: its requests by outcome, the times to the point for which it waits, the longest gap between
    two pieces of each answer. The times leave out cold requests, unless there are no others.
    """

    outcomes: dict[Outcome, int]
    waits: Times
    silences: Times

    @property
    def failed(self) -> int:
        """The requests that were refused or lost."""
        return self.outcomes["refused"] + self.outcomes["lost"]


class Kept(Struct, frozen=True):
    """An app alone and together, and the part that it keeps of its speed: alone by together, at p50 and p95."""

    app: str
    waits_for: str
    alone: AppFigures
    together: AppFigures
    p50: float
    p95: float


class HouseFigures(Struct, frozen=True, kw_only=True):
    """The figures of one server: of each app, and of all apps together.

    `computed_by_new` is the computed prompt tokens for each new token, None if the server does not count cached tokens;
    `own_cpu` is of one core, from 0 to 1.
    """

    server: str
    apps: list[Kept]
    tokens_per_s: float
    computed_by_new: float | None
    own_cpu: float


def house_figures(stay: Stay, apps: Sequence[App]) -> HouseFigures:
    """Return the figures of a stay, for the apps that took part."""
    together = stay.together
    end = together.begin + together.seconds
    tokens = sum(each.answer.tokens_within(together.begin, end) for each in together.sent if each.answer)
    return HouseFigures(
        server=stay.server,
        apps=[_kept(app, stay) for app in apps if app.name in stay.alone],
        tokens_per_s=tokens / together.seconds,
        computed_by_new=computed_by_new(together.sent),
        own_cpu=together.own_cpu,
    )


def _kept(app: App, stay: Stay) -> Kept:
    alone, together = (_app_figures(app, phase) for phase in (stay.alone[app.name], stay.together))
    before, now = alone.waits, together.waits
    return Kept(app.name, app.waits_for, alone, together, _part(before.p50, now.p50), _part(before.p95, now.p95))


def _part(alone: float | None, together: float | None) -> float:
    return alone / together if alone and together else 0.0


def _app_figures(app: App, phase: HousePhase) -> AppFigures:
    sent = [each for each in phase.sent if each.app == app.name]
    outcomes = {name: sum(each.outcome == name for each in sent) for name in get_args(Outcome)}
    # Cold requests are more of a short phase's than of a long one's.
    warm = [each for each in sent if not each.cold] or sent
    answers = [each.answer for each in warm if each.answer]
    waits = [each.first_ms if app.waits_for == "first token" else each.seconds * 1000 for each in answers]
    return AppFigures(
        outcomes,
        times(waits, never=len(warm) - len(answers)),
        times([max(each.gaps_ms, default=0.0) for each in answers]),
    )


def times(values: Sequence[float], never: int = 0) -> Times:
    """Return the percentiles of values in ms and of so many requests whose time has no end."""
    ordered = sorted(values) + [inf] * never
    found = [percentile(ordered, percent) for percent in (50, 95)] if values else [inf, inf]
    return Times(*(each if isfinite(each) else None for each in found))


def computed_by_new(sent: Sequence[Sent]) -> float | None:
    """Return the computed prompt tokens divided by the new tokens, with which no earlier prompt or answer begins."""
    earlier: list[str] = []
    computed, new = 0, 0.0
    for each in sorted(sent, key=lambda each: each.sent_at):
        answer = each.answer
        if not each.text:
            continue
        if answer and answer.prompt_tokens is not None and answer.cached_tokens is not None:
            computed += answer.prompt_tokens - answer.cached_tokens
            new += answer.prompt_tokens * (1 - _known(each.text, earlier) / len(each.text))
        insort(earlier, each.text + (f"assistant: {answer.text}\n" if answer else ""))
    return computed / new if new else None


def _known(text: str, earlier: Sequence[str]) -> int:
    """Return how much of a text begins one of the sorted earlier texts: the nearest have the most."""
    place = bisect_left(earlier, text)
    nearest = earlier[max(0, place - 1) : place + 1]
    same = (takewhile(lambda pair: pair[0] == pair[1], zip(text, each, strict=False)) for each in nearest)
    return max((sum(1 for _ in pairs) for pairs in same), default=0)
