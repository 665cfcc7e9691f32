"""Sampling: the samplers' parameters, their ranges and llama.cpp's defaults."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from car_protocol.meta import note

Fraction = Annotated[float, Meta(ge=0, le=1)]
Temperature = Annotated[float, Meta(ge=0, le=5)]
Penalty = Annotated[float, Meta(ge=-10, le=10)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenKey = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,9})$")]


class Xtc(Struct, frozen=True, forbid_unknown_fields=True):
    """Exclude top choices: how often, and from which probability on."""

    probability: Annotated[Fraction, note("the probability of doing it at a token")]
    threshold: Annotated[Fraction, note("tokens count as top choices from this probability on")]


class Dry(Struct, frozen=True, forbid_unknown_fields=True):
    """Do not repeat yourself: what a repeated run of tokens costs as it grows."""

    multiplier: Annotated[float, Meta(ge=0, le=10, description="0 is off")]
    base: Annotated[float, Meta(ge=1, le=10, description="growth of the cost with each token of the run")] = 1.75
    allowed_length: Annotated[int, Meta(ge=0, le=1000, description="a run up to this length costs nothing")] = 2
    penalty_last_n: Annotated[int, Meta(ge=-1, le=65_536, description="-1 is the whole context")] = -1
    sequence_breakers: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]],
        Meta(max_length=16, description="a run ends at these; by default at a newline, a colon, a quote or a star"),
    ] = field(default_factory=lambda: ["\n", ":", '"', "*"])


class Mirostat(Struct, frozen=True, forbid_unknown_fields=True):
    """Keep the surprise of each token near `tau`; takes the place of every filter of probabilities."""

    version: Literal[1, 2]
    tau: Annotated[float, Meta(ge=0, le=20, description="the surprise to keep")] = 5.0
    eta: Annotated[Fraction, note("learning rate of the correction")] = 0.1


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of the choice of the next token; the defaults are llama.cpp's usual values."""

    temperature: Annotated[Temperature, note("randomness of the draw; 0 is greedy")] = 0.8
    top_k: Annotated[int, Meta(ge=0, le=100_000, description="keep this many of the likeliest tokens; 0 is off")] = 40
    top_p: Annotated[Fraction, note("keep the likeliest tokens that together have this probability; 1 is off")] = 0.95
    min_p: Annotated[Fraction, note("drop tokens below this fraction of the likeliest one's probability; 0 is off")] = (
        0.05
    )
    typical_p: Annotated[
        Fraction, note("keep the tokens of most typical surprise that together have this probability; 1 is off")
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        Meta(
            ge=-1,
            le=100,
            description="keep tokens within this many standard deviations of the largest logit; -1 is off",
        ),
    ] = -1.0
    xtc: Annotated[Xtc | None, note("exclude top choices; off if absent")] = None
    dry: Annotated[Dry | None, note("penalize runs of tokens that repeat; off if absent")] = None
    mirostat: Annotated[
        Mirostat | None,
        note("keep the surprise of each token near a target, in place of all filters above; off if absent"),
    ] = None
    repeat_penalty: Annotated[
        float, Meta(ge=0.1, le=10, description="divide the logits of recent tokens; 1 is off")
    ] = 1.0
    repeat_last_n: Annotated[
        int, Meta(ge=-1, le=65_536, description="tokens that the penalties look back on; -1 is the whole context")
    ] = 64
    presence_penalty: Annotated[
        Penalty, note("subtracted once from the logit of each recent token, also of the prompt")
    ] = 0.0
    frequency_penalty: Annotated[
        Penalty, note("subtracted from the logit of a recent token for every occurrence, also in the prompt")
    ] = 0.0
    logit_bias: Annotated[dict[TokenKey, Bias], Meta(max_length=1024, description="added to logits, by token id")] = {}
    ignore_eos: Annotated[bool, note("go on after an end token, up to `max_tokens`")] = False
