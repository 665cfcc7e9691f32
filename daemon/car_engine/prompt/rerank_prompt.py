"""A query and a document as one input of a model that ranks."""

import re

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
