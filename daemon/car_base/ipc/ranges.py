"""Ranges of the values that an engine may send, because a hostile model file may control the process.

msgspec checks a length before it decodes the items, and refuses NaN for a number that has a least value.
"""

from typing import Annotated, Literal

from msgspec import Meta

# llama.cpp's own bound on sequences of one context.
MAX_SEQUENCES = 256
# Updates in one frame of a step; an engine with more sends several frames. The daemon decodes a frame in one go: so
# many updates with the most pieces of calls in each take 0.2 s, twice as long as the longest text.
MAX_UPDATES = 64
# Characters of a text for the log or for a reason: the longest path has 4,096.
MAX_LINE = 8192

_MOST = 2**53  # exact in JSON and in a float
_MOST_TOKENS = 2**31 - 1

Key = Annotated[int, Meta(ge=0, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]  # of bytes, of steps, of layers
TokenCount = Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]
Measure = Annotated[float, Meta(ge=0, le=_MOST)]  # milliseconds, and totals since the start
Fraction = Annotated[float, Meta(ge=0, le=1)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Rate = Annotated[float, Meta(gt=0, le=_MOST)]  # tokens per second
SequenceNumber = Annotated[int, Meta(ge=-1, lt=MAX_SEQUENCES)]  # -1: none
Sequences = Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)]
ContextTokens = Annotated[int, Meta(ge=1, le=_MOST_TOKENS)]
Threads = Annotated[int, Meta(ge=1, le=65_536)]
# A signal is negative; signal.strsignal refuses greater numbers.
ExitStatus = Annotated[int, Meta(ge=-64, le=255)]

Line = Annotated[str, Meta(max_length=MAX_LINE)]
# Of a device, an ability or a means of confinement: visible characters and blanks.
Name = Annotated[str, Meta(max_length=128, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
CounterName = Annotated[str, Meta(max_length=32)]
Counters = Annotated[dict[CounterName, Measure], Meta(max_length=64)]
# The inputs of a declaration: tokens per second of a decode of so many rows.
InputName = Annotated[
    str,
    Meta(max_length=32, pattern=r"\A(free_bytes|kv_bytes_per_sequence|cores_of_others|tokens_per_s_[1-9][0-9]{0,2})\Z"),
]
Inputs = Annotated[dict[InputName, Measure], Meta(max_length=64)]

# Events that an engine may log, and the facts beside them.
Event = Literal[
    "capacity.lowered",
    "cells.no_folder",
    "cells.not_stored",
    "context.lowered",
    "curve.outdated",
    "engine.failed",
    "images.pillow_missing",
    "layers.on_host",
    "load.retried",
    "model.template_invalid",
]
FactName = Literal[
    "asked", "declared", "do", "experts_of", "fault", "folder", "layers", "of", "part", "thread", "tried_next", "why"
]
Fact = Annotated[int, Meta(ge=-_MOST, le=_MOST)] | Annotated[float, Meta(ge=-_MOST, le=_MOST)] | Line | None
Facts = dict[FactName, Fact]


def line(text: str) -> str:
    """Return the beginning of a text, as long as a line may be."""
    return text[:MAX_LINE]
