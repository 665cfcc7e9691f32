"""Texts to embed or to rank as tokens, refused where the model or its context cannot take them."""

from collections.abc import Callable
from dataclasses import dataclass

from car_daemon.engine.prompt.context_limit import ContextLimit
from car_daemon.ipc.frames import PrepareTexts
from car_daemon.ipc.refusal import Refusal


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
            return [self._fitting(text, "", "input") for text in job.texts]
        if not self.ranks:
            raise Refusal("model_unavailable", lacks="rerank")
        return [self._fitting(text, job.query, "documents") for text in job.texts]

    def _fitting(self, text: str, query: str, param: str) -> list[int]:
        self.limit.check_bytes(len(text.encode()) + len(query.encode()))
        tokens = self.pair(query, text) if self.ranks else self.tokenize(text)
        if not tokens:
            raise Refusal("invalid_params", param=param)
        if len(tokens) > self.limit.tokens:
            raise self.limit.exceeded(len(tokens), None)
        return tokens
