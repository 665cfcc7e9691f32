"""What a load asks for, the same for the same seed."""

from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct

from car_client.carctl.load.arrivals import poisson
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.prompts import MakePrompt, of_tokens, of_words
from car_client.carctl.load.request import Request


class Workload(Struct, frozen=True, kw_only=True):
    """Clients that each ask again when they are answered or, with a `rate`, arrivals that wait for nobody.

    It ends after so many `requests`, or `seconds` after its begin: then nothing new is asked, and what comes later does
    not count. Neither does what comes in the first `warm_up` seconds. `options` are members of the request.
    """

    clients: int = 1
    rate: float | None = None
    requests: int | None = None
    seconds: float | None = None
    warm_up: float = 0.0
    prompts: Lengths = Lengths(16, 16)
    answers: Lengths = Lengths(64, 64)
    shared_prefix: int = 0
    # Prompts are tokens without it; with it they are words of so many tokens each.
    tokens_per_word: float | None = None
    options: dict[str, Any] = {}
    seed: int = 1

    def all_requests(self) -> Iterator[Request]:
        """Yield what is asked, in order; without end where only time ends it."""
        chance = Random(self.seed)
        prompt = self._prompts()
        number = 0
        while self.requests is None or number < self.requests:
            yield Request(number, prompt(self.prompts.draw(chance), chance), self.answers.draw(chance))
            number += 1

    def arrivals(self) -> Iterator[float]:
        """Yield when they arrive, in seconds from the begin; only where there is a rate."""
        assert self.rate is not None
        # A chance of its own: another rate asks the same requests.
        return poisson(self.rate, Random(self.seed + 1))

    def _prompts(self) -> MakePrompt:
        if self.tokens_per_word is None:
            return of_tokens(self.shared_prefix, self.seed)
        return of_words(self.tokens_per_word, self.shared_prefix, self.seed)
