"""A query and a document as one input of a model that ranks."""

import re

from llama_cpp import llama_cpp as binding

from car_daemon.engine.llama.marks import Marks
from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.tokens import Vocabulary

_SLOT = re.compile(r"\{(query|document)\}")


class Pairs:
    """Builds the tokens of pairs by the model's template, or with its separators where it has none."""

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._template = model.metadata("tokenizer.chat_template.rerank")
        self._marks = Marks(vocabulary.specials, ())
        self._start, self._middle, self._end = _separators(vocabulary)

    def tokens(self, query: str, document: str) -> list[int]:
        """Return a pair's tokens; control tokens in either text are plain text."""
        if self._template is not None:
            return self._filled(self._template, {"query": query, "document": document})
        return [*self._start, *self._plain(query), *self._middle, *self._plain(document), *self._end]

    def _plain(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)

    def _filled(self, template: str, texts: dict[str, str]) -> list[int]:
        mark = self._marks.free("".join([template, *texts.values()]))
        if mark is None:
            raise ValueError("the texts hold all noncharacters")
        # One pass over the template: a query may hold "{document}" too.
        filled = _SLOT.sub(lambda slot: self._marks.put(texts[slot[1]], mark), template)
        pieces = self._marks.segments(filled, mark)
        cut = [self._vocabulary.tokenize(piece, add_special=False, parse_special=parse) for piece, parse in pieces]
        return [token for tokens in cut for token in tokens]


def _separators(vocabulary: Vocabulary) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens before the query, between it and the document, and after that."""
    handle = vocabulary.handle
    separator, end = binding.llama_vocab_sep(handle), binding.llama_vocab_eos(handle)
    end = separator if end == binding.LLAMA_TOKEN_NULL else end
    ends = _given(end, binding.llama_vocab_get_add_eos(handle))
    middle = [*ends, *_given(separator, binding.llama_vocab_get_add_sep(handle))]
    # Word pieces always end with their separator, also where the file does not say so.
    is_word_pieces = binding.llama_vocab_type(handle) == binding.LLAMA_VOCAB_TYPE_WPM
    return _given(vocabulary.begin, vocabulary.adds_begin), middle, _given(end, is_word_pieces) or ends


def _given(token: int, wanted: bool) -> list[int]:
    """Return a token that is wanted, where the model has it."""
    return [token] if wanted and token != binding.LLAMA_TOKEN_NULL else []
