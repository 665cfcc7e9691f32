"""Texts to embed or to rank as tokens, refused where the model or its context cannot take them."""

from collections.abc import Callable
from dataclasses import dataclass

from car_daemon.engine.frames import PrepareTexts
from car_daemon.engine.refusal import Refusal


@dataclass(frozen=True, slots=True)
class TextInputs:
    """How one model takes texts: as tokens, at most so many, and whether it ranks them or gives vectors."""

    tokenize: Callable[[str], list[int]]
    pair: Callable[[str, str], list[int]]
    max_tokens: int
    longest_piece: int
    ranks: bool

    def of(self, job: PrepareTexts) -> list[list[int]]:
        """Return the tokens of every text; raises Refusal."""
        if job.query is None:
            if self.ranks:
                raise Refusal("model_unavailable", lacks="embed")
            return [self._fitting(text, "", "input") for text in job.texts]
        if not self.ranks:
            raise Refusal("model_unavailable", lacks="rerank")
        return [self._fitting(text, job.query, "documents") for text in job.texts]

    def _fitting(self, text: str, query: str, param: str) -> list[int]:
        if len(text.encode()) + len(query.encode()) > self.max_tokens * self.longest_piece:
            raise self._too_long(None)
        tokens = self.pair(query, text) if self.ranks else self.tokenize(text)
        if not tokens:
            raise Refusal("invalid_params", param=param)
        if len(tokens) > self.max_tokens:
            raise self._too_long(len(tokens))
        return tokens

    def _too_long(self, tokens: int | None) -> Refusal:
        return Refusal("context_exceeded", prompt_tokens=tokens, max_tokens=None, context_tokens=self.max_tokens)
