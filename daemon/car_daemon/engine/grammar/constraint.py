"""What binds an answer's form: grammars compiled by llguidance, and where one answer stands in its grammar."""

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from car_daemon.engine.grammar.why import TOO_COMPLEX, why_refused
from car_daemon.engine.prototypes import Prototypes

# A hostile grammar costs this much and no more: states of the parser and work on one token's mask.
_LIMITS = LLParserLimits(
    max_items_in_row=1000, step_max_items=20_000, step_lexer_fuel=100_000, max_lexer_states=100_000
)
_REMEMBERED = 16
# The library has no limit for divisors: it builds a state for each remainder, again for each schema that adds to one.
_DIVISOR = re.compile(r'"multipleOf":\s*(-?[0-9][0-9.eE+-]*)')
_REMAINDERS_MAX = 200_000
_DIGITS_MAX = 30
# More than zeros alone make of numbers that are that long.
_COMMON_BITS_MAX = 1000
# How the library says that the lexer, not the parser, came to its limit.
_LEXER = "lexer error"
_SILENT = 0


class ConstraintError(Exception):
    """The grammar cannot be compiled, or became too complex; the message is a fixed text."""

    def __init__(self, why: str = TOO_COMPLEX) -> None:
        super().__init__(why)


class Constraint:
    """One answer's place in its grammar; `opener` is a token that may come first all the same, to open a thought."""

    def __init__(
        self,
        matcher: LLMatcher,
        size: int,
        ends: frozenset[int],
        opener: int | None,
        exhausted: Callable[[], None],
    ) -> None:
        self._matcher = matcher
        self._exhausted = exhausted
        self._size = size
        self._ends = ends
        # Mutable state: the token that may still open a thought.
        self._opener = opener

    @property
    def complete(self) -> bool:
        """Whether nothing may follow any more."""
        return bool(self._matcher.is_stopped())

    def take(self, token: int) -> bool:
        """Go on with a token; False where the grammar refuses it. Raises ConstraintError."""
        opener, self._opener = self._opener, None
        if token == opener:
            return True
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        return taken

    def unfinished(self, token: int) -> NDArray[np.intp] | None:
        """Return all tokens but ends, where a thought would end the answer with `token`; None where it would not."""
        return np.setdiff1d(np.arange(self._size), list(self._ends)) if token in self._ends else None

    def allowed(self) -> NDArray[np.intp]:
        """Return the tokens that may come next, in order. Raises ConstraintError where there are none."""
        mask = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._check()
        if mask[self._size]:
            mask[list(self._ends)] = 1
        allowed = np.flatnonzero(mask[: self._size])
        if not len(allowed):
            raise ConstraintError
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            if self._matcher.get_error().startswith(_LEXER):
                self._exhausted()
            raise ConstraintError


class Constraints:
    """Compiles grammars for one vocabulary; those used last are kept compiled."""

    def __init__(self, pieces: Sequence[bytes], ends: frozenset[int], control: frozenset[int]) -> None:
        self._pieces = pieces
        self._ends = ends
        self._control = control
        self._prototypes = Prototypes(self._compiled, _REMEMBERED)

    def compile(self, text: str) -> None:
        """Check a grammar in llguidance's Lark and keep it compiled. Raises ConstraintError."""
        self._prototypes.get(text)

    def start(self, text: str, opener: int | None = None) -> Constraint:
        """Return the beginning of an answer under a grammar. Raises ConstraintError."""
        matcher = self._prototypes.get(text).deep_copy()
        # All copies share the lexer's states, which only grow in number: the next answer begins with none.
        return Constraint(
            matcher, len(self._pieces), self._ends, opener, exhausted=lambda: self._prototypes.forget(text)
        )

    def _compiled(self, text: str) -> LLMatcher:
        if _remainders(text) > _REMAINDERS_MAX:
            raise ConstraintError("multipleOf has too many remainders")
        # Forcing would make the library choose how text is cut into tokens, which is the model's choice.
        grammar = LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + text)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=_SILENT, limits=_LIMITS)
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise ConstraintError(why_refused(trial.get_error()))
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance knows it, made when the first grammar comes."""
        end = len(self._pieces)
        control = [*sorted(self._control), end]
        pieces = [*self._pieces, b""]
        for token in control:
            # The library takes tokens of the same bytes for the same token.
            pieces[token] = b"<|%d|>" % token
        vocabulary: Any = _Vocabulary(pieces, control, end)
        return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=end)


def _remainders(text: str) -> int:
    """Return more than the states that divisors in a grammar's schemas take, where they take many."""
    divisors = [Decimal(divisor) for divisor in _DIVISOR.findall(text)]
    if not divisors:
        return 0
    if any(
        abs(divisor.adjusted()) > _DIGITS_MAX or len(divisor.as_tuple().digits) > _DIGITS_MAX for divisor in divisors
    ):
        return _REMAINDERS_MAX + 1
    scale = Decimal(10) ** _DIGITS_MAX
    # Schemas that are merged are divisible by both; how many trailing zeros that has makes no difference.
    common = 1
    for divisor in divisors:
        common = math.lcm(common, abs(int(divisor * scale)))
        if common.bit_length() > _COMMON_BITS_MAX:
            return _REMAINDERS_MAX + 1
    while common and common % 10 == 0:
        common //= 10
    return common * text.count("{")


class _Vocabulary:
    """What llguidance reads of a vocabulary: all ends are one more token of its own, the last."""

    def __init__(self, pieces: list[bytes], control: list[int], end: int) -> None:
        self.tokens = pieces
        self.special_token_ids = control
        self.eos_token_id = end
        self.bos_token_id = None

    def __call__(self, _text: bytes | str) -> list[int]:
        """Cut no text into tokens: only forcing would need it."""
        return []
