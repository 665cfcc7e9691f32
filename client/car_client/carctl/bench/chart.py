"""Throughput and latencies over the rounds as a picture, drawn with matplotlib."""

import os
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from car_client.carctl.bench.rounds import Round
from car_client.carctl.failure import WrongUse


def draw(found: Sequence[Round], path: str) -> None:
    """Write the picture in the format of the file's extension, PNG without one."""
    picture = Figure(figsize=(9, 4), layout="constrained")
    throughput, times = picture.subplots(1, 2)
    by_rate = found[0].rate is not None
    others = [each.other for each in found if each.other is not None]
    for name, measured in (("card", [each.card for each in found]), *([("other", others)] if others else [])):
        over = [each.rate if by_rate else each.at_once for each in found]
        throughput.plot(over, [figures.tokens_per_s for figures in measured], marker="o", label=name)
        times.plot(over, [figures.ttft_ms.p50 for figures in measured], marker="o", label=f"{name}, first token p50")
        times.plot(
            over, [figures.ttft_ms.p99 for figures in measured], linestyle="--", label=f"{name}, first token p99"
        )
        times.plot(over, [figures.itl_ms.p50 for figures in measured], marker="s", label=f"{name}, between tokens p50")
    _finish(throughput, "tokens per second", by_rate=by_rate)
    _finish(times, "milliseconds", by_rate=by_rate)
    throughput.set_ylim(bottom=0)
    times.set_yscale("log")
    try:
        picture.savefig(path)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        raise WrongUse(f"cannot write {path}: {reason}") from error


def _finish(axes: Axes, what: str, *, by_rate: bool) -> None:
    axes.set_xlabel("requests a second" if by_rate else "requests at once")
    axes.set_ylabel(what)
    axes.legend()
    axes.grid(visible=True, alpha=0.3)
