"""A small vocabulary for llguidance, and answers under its grammars."""

import random
import re
from collections.abc import Sequence
from itertools import compress, count

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

END = 0
CONTROL = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"]
# Some reach over the edges of a grammar's rules.
MERGED = ['{"', '": ', '": {', '": {"', '"}', "}}", "}}\n", '"}}', "{}", "{}}", '", "', "  ", "\n\n", "}, ", "}}]"]


class _Tokens:
    """The tokenizer that llguidance needs: control tokens, all bytes, and a few longer ones."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self, control: list[str]) -> None:
        self.special_token_ids = list(range(len(control)))
        self.tokens = [text.encode() for text in control]
        self.tokens += [bytes([byte]) for byte in range(256)] + [text.encode() for text in MERGED]

    def __call__(self, text: bytes) -> list[int]:
        return [len(self.special_token_ids) + byte for byte in text]


class Vocabulary:
    """Control tokens, and a matcher's answers to texts in them; the first of all ends an answer."""

    def __init__(self, control: list[str]) -> None:
        self._names = ["<end>", *control]
        self._tokens = _Tokens(self._names)
        self._llguidance = LLTokenizer(TokenizerWrapper(self._tokens))
        self._numbers = {text: number for number, text in enumerate(self._tokens.tokens)}
        longest_first = sorted(self._tokens.tokens, key=len, reverse=True)
        self._longest = re.compile(b"|".join(map(re.escape, longest_first)), re.DOTALL)

    def token_of(self, name: str) -> int | None:
        """Return the control token of this name."""
        return self._names.index(name) if name in self._names else None

    def matcher(self, grammar: str) -> LLMatcher:
        """Return a matcher of a Lark grammar, which has to be sound."""
        matcher = LLMatcher(self._llguidance, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, grammar: str, text: str) -> bool:
        """Tell whether the grammar allows this answer, told in the longest tokens."""
        matcher = self.matcher(grammar)
        tokens = self._tokenize(text.encode())
        return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and _may_end(matcher)

    def wander(self, grammar: str, seed: int, hints: Sequence[str] = ()) -> str | None:
        """Return a random answer under the grammar, with hints where they fit; None where it went on for too long."""
        matcher = self.matcher(grammar)
        choose = random.Random(seed)
        pieces = [self._tokenize(hint.encode()) for hint in hints]
        answer = b""
        for _ in range(2000):
            allowed = list(compress(count(), matcher.compute_logit_bias()))
            fitting = [piece for piece in pieces if matcher.validate_tokens(piece) == len(piece)]
            tokens = choose.choice(fitting) if fitting and choose.random() < 0.3 else [choose.choice(allowed)]
            if tokens == [END]:
                return answer.decode()
            assert matcher.consume_tokens(tokens)
            answer += b"".join(self._tokens.tokens[token] for token in tokens)
        return None

    def follow(self, grammar: str, wish: str, most: int) -> tuple[str, bool]:
        """Return the answer of a model that writes `wish` over and over, each time to its end, and whether it ended.

        A byte that the grammar refuses is skipped; the model ends the answer when its wish is written, if it may. It
        writes `most` tokens at most.
        """
        matcher = self.matcher(grammar)
        answer, left = b"", self._tokenize(wish.encode())
        for _ in range(most):
            if not left and _may_end(matcher):
                return answer.decode(), True
            left = left or self._tokenize(wish.encode())
            while left and not matcher.validate_tokens(left[:1]):
                left = left[1:]
            if left:
                assert matcher.consume_tokens(left[:1])
                answer += self._tokens.tokens[left[0]]
                left = left[1:]
        return answer.decode(errors="ignore"), False

    def _tokenize(self, data: bytes) -> list[int]:
        return [self._numbers[text] for text in self._longest.findall(data)]


def _may_end(matcher: LLMatcher) -> bool:
    return matcher.is_accepting() and not matcher.is_error()
