"""The requests of a load, the same for the same seed."""

from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct

from car_client.carctl.load.arrivals import poisson
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.prompts import of_tokens, of_words
from car_client.carctl.load.request import Request


class Workload(Struct, frozen=True, kw_only=True):
    """Clients in a closed loop or, with a `rate`, Poisson arrivals.

    It ends after `requests`, or after `seconds`: then no request is sent, and later pieces do not count. Pieces in the
    first `warm_up` seconds do not count either. `options` are members of every request.
    """

    clients: int = 1
    rate: float | None = None
    requests: int | None = None
    seconds: float | None = None
    warm_up: float = 0.0
    prompts: Lengths = Lengths(16, 16)
    answers: Lengths = Lengths(64, 64)
    shared_prefix: int = 0
    # Prompts are words of this mean length; without it they are tokens.
    tokens_per_word: float | None = None
    options: dict[str, Any] = {}
    seed: int = 1

    def all_requests(self) -> Iterator[Request]:
        """Yield the requests in order, without end where only time ends the workload."""
        chance = Random(self.seed)
        prompt = of_tokens(self.shared_prefix, self.seed)
        if self.tokens_per_word is not None:
            prompt = of_words(self.tokens_per_word, self.shared_prefix, self.seed)
        number = 0
        while self.requests is None or number < self.requests:
            yield Request(number, prompt(self.prompts.draw(chance), chance), self.answers.draw(chance))
            number += 1

    def arrivals(self) -> Iterator[float]:
        """Yield arrival times in seconds from the start, for a workload with a rate."""
        assert self.rate is not None
        # A generator of its own, so that another rate sends the same requests.
        return poisson(self.rate, Random(self.seed + 1))
