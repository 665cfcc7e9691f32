"""Texts to embed or to rank as tokens, refused if the model or its context cannot take them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from car_base.ipc.frames import PrepareTexts
from car_base.ipc.refusal import Refusal
from car_engine.prompt.context_limit import ContextLimit
from car_engine.prompt.special_token_escaper import SpecialTokenEscaper
from car_engine.prompt.vocabulary import PromptVocabulary

_PLACE = re.compile(r"\{(query|document)\}")


class RerankPrompt:
    """Builds inputs by the model's template, or with its separators if it has no template."""

    def __init__(self, template: str | None, vocabulary: PromptVocabulary) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._escaper = SpecialTokenEscaper(vocabulary.specials, ())
        self._separators = vocabulary.separators

    def tokens(self, query: str, document: str) -> list[int]:
        """Return the tokens of one input; control tokens in either text are plain text."""
        if self._template is None:
            start, middle, end = self._separators
            return [*start, *self._cut(query), *middle, *self._cut(document), *end]
        mark = self._escaper.free_mark(self._template + query + document)
        if mark is None:
            raise ValueError("the texts contain all noncharacters")
        texts = {"query": query, "document": document}
        # One pass over the template, because a query may contain "{document}".
        filled = _PLACE.sub(lambda place: self._escaper.escape(texts[place[1]], mark), self._template)
        pieces = self._escaper.segments(filled, mark)
        return [token for piece, parse in pieces for token in self._cut(piece, parse_special=parse)]

    def _cut(self, text: str, *, parse_special: bool = False) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=parse_special)


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
            raise Refusal("invalid_params", param=param, why="a text is empty, and the model has no begin token")
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
