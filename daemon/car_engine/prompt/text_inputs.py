"""Texts to embed or to rank as tokens, refused if the model or its context cannot take them."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from car_base.ipc.frames import PrepareTexts
from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Texts as inputs of one model, which either `ranks` pairs or gives vectors."""

    tokenize: Callable[[str], list[int]]
    pair: Callable[[str, str], list[int]]
    limit: ContextLimit
    ranks: bool

    def of(self, job: PrepareTexts) -> list[list[int]]:
        """Return the tokens of every text; raises Refusal."""
        if job.query is None:
            if self.ranks:
                raise Refusal("model_unavailable", lacks="embed")
            tokens = self._beginning if job.truncate else self._whole
            return [self._fitting(tokens(text), "input") for text in job.texts]
        if not self.ranks:
            raise Refusal("model_unavailable", lacks="rerank")
        return [self._fitting(self._whole(text, job.query), "documents") for text in job.texts]

    def _fitting(self, tokens: list[int], param: str) -> list[int]:
        if not tokens:
            raise Refusal("invalid_params", param=param)
        if len(tokens) > self.limit.tokens:
            raise self.limit.exceeded(len(tokens), None)
        return tokens

    def _whole(self, text: str, query: str = "") -> list[int]:
        self.limit.check_bytes(len(text.encode()) + len(query.encode()))
        return self.pair(query, text) if self.ranks else self.tokenize(text)

    def _beginning(self, text: str) -> list[int]:
        """Return the tokens of as much of a text as fits, and the special tokens that end each text."""
        possible = text.encode()[: self.limit.most_bytes]
        tokens = self.tokenize(possible.decode(errors="ignore"))
        if len(tokens) <= self.limit.tokens:
            return tokens
        end = _common_end(tokens, self.tokenize(""))
        return tokens[: self.limit.tokens - len(end)] + end


def _common_end(tokens: list[int], others: list[int]) -> list[int]:
    """Return the longest list that both end with."""
    pairs = zip(reversed(tokens), reversed(others), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return tokens[len(tokens) - alike :]
