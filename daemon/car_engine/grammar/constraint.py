"""Constraints on answers: grammars compiled by llguidance, and the progress of one answer in its grammar."""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import cached_property, partial
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from car_base.ipc.types import TOO_COMPLEX
from car_engine.grammar.schema import ERROR_TEXT, UNIMPLEMENTED

_UNKNOWN = "it cannot be compiled"
# Start of the library's error, and its meaning for the author of the schema.
_MEANINGS = {
    "Unsatisfiable schema": "no value is valid under it",
    "oneOf constraints": "oneOf is supported only where at most one of its schemas can match: use anyOf",
    "min/maxProperties": "minProperties and maxProperties are supported only where all properties are required",
    "Pointer": "a $ref names a schema that does not exist",
    "Resource": "a $ref points outside the schema",
    "regex parse error": "a pattern is not a regular expression, or has look-around or backreferences",
    "Invalid type": "a type is not one of JSON's",
    "Unknown format": "a format is not supported",
}
# Keywords of JSON schemas that the library lacks; other entries of its list are names chosen by the author.
_KEYWORDS = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    *("contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef"),
)


def explain(error: str) -> str:
    """Return the text for an error of the library."""
    found = ERROR_TEXT.search(error)
    if found is None:
        return _UNKNOWN
    message = found[1]
    if message.startswith(UNIMPLEMENTED):
        named = [keyword for keyword in _KEYWORDS if f'"{keyword}"' in message]
        return f"not supported: {', '.join(named)}" if named else _UNKNOWN
    return next((meaning for begin, meaning in _MEANINGS.items() if message.startswith(begin)), _UNKNOWN)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BuildCache(Generic[K, V]):
    """The `limit` prototypes used last; thread-safe, though two threads may build the same one."""

    def __init__(self, build: Callable[[K], V], limit: int) -> None:
        self._build = build
        self._limit = limit
        self._lock = Lock()
        self._built: OrderedDict[K, V] = OrderedDict()  # least recently used first

    def __repr__(self) -> str:
        return f"<BuildCache {len(self._built)} of {self._limit}>"

    def get(self, key: K) -> V:
        """Return a prototype, built now if it is missing; raises what `build` raises."""
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        built = self._build(key)
        with self._lock:
            self._built[key] = built
            while len(self._built) > self._limit:
                self._built.popitem(last=False)
        return built

    def forget(self, key: K) -> None:
        """Remove a prototype: the next `get` builds it anew."""
        with self._lock:
            self._built.pop(key, None)


# Bounds on hostile grammars: states of the parser, and work on one token's mask.
_LIMITS = LLParserLimits(
    max_items_in_row=1000, step_max_items=20_000, step_lexer_fuel=100_000, max_lexer_states=100_000
)
_REMEMBERED = 16
# The library does not limit divisors: it builds a state for each remainder, again for each schema merged with it.
_DIVISOR = re.compile(r'"multipleOf":\s*(-?[0-9][0-9.eE+-]*)')
_REMAINDERS_MAX = 200_000
_DIGITS_MAX = 30
# More bits than numbers of _DIGITS_MAX digits get from trailing zeros alone.
_COMMON_BITS_MAX = 1000
# Start of the library's error when the lexer, not the parser, reached its limit.
_LEXER = "lexer error"
_SILENT = 0


class ConstraintError(Exception):
    """A grammar that cannot be compiled or became too complex; the message is a fixed text, `error` the library's."""

    def __init__(self, why: str = TOO_COMPLEX, error: str = "") -> None:
        super().__init__(why)
        self.error = error


class Constraint:
    """Progress of one answer in its grammar; `think_token` may precede the answer, to open a thought."""

    def __init__(
        self,
        matcher: LLMatcher,
        size: int,
        ends: frozenset[int],
        think_token: int | None,
        exhausted: Callable[[], None],
    ) -> None:
        self._matcher = matcher
        self._exhausted = exhausted
        self._size = size
        self._ends = ends
        self._think_token = think_token  # None once a token has come

    @property
    def complete(self) -> bool:
        """True if the grammar allows no further token."""
        return bool(self._matcher.is_stopped())

    def advance(self, token: int) -> bool:
        """Advance by a token; False if the grammar refuses it. Raises ConstraintError."""
        think_token, self._think_token = self._think_token, None
        if token == think_token:
            return True
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        consumed = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        return consumed

    def unfinished(self, token: int) -> NDArray[np.intp] | None:
        """Return all tokens but end tokens if `token` would end the answer inside a thought, else None."""
        return np.setdiff1d(np.arange(self._size), list(self._ends)) if token in self._ends else None

    def allowed(self) -> NDArray[np.intp]:
        """Return the tokens that the grammar allows next, ascending. Raises ConstraintError if there are none."""
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
    """Compiles grammars for one vocabulary and caches them for each owner, because compiling takes a while."""

    def __init__(self, pieces: Sequence[bytes], ends: frozenset[int], control: frozenset[int]) -> None:
        self._pieces = pieces
        self._ends = ends
        self._control = control
        self._prototypes: BuildCache[tuple[int, str], LLMatcher] = BuildCache(
            lambda key: self._compiled(key[1]), _REMEMBERED
        )

    def __repr__(self) -> str:
        return f"<Constraints {self._prototypes!r}>"

    def compile(self, owner: int, text: str) -> None:
        """Compile a grammar in llguidance's Lark into the cache of a uid. Raises ConstraintError."""
        self._prototypes.get((owner, text))

    def warnings(self, text: str) -> list[str]:
        """Return the library's words about parts of a grammar that it leaves out."""
        _, warnings = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(text))
        return list(warnings)

    def start(self, owner: int, text: str, think_token: int | None = None) -> Constraint:
        """Return the beginning of an answer under a grammar. Raises ConstraintError."""
        matcher = self._prototypes.get((owner, text)).deep_copy()
        # All copies share the lexer's states, which only grow in number: once exhausted, a new lexer is needed.
        forget = partial(self._prototypes.forget, (owner, text))
        return Constraint(matcher, len(self._pieces), self._ends, think_token, exhausted=forget)

    def _compiled(self, text: str) -> LLMatcher:
        if _remainders(text) > _REMAINDERS_MAX:
            raise ConstraintError(f"multipleOf has too many remainders: the limit is {_REMAINDERS_MAX:,}")
        # With forcing the library would choose the tokens of fixed text, which is the model's choice.
        grammar = LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + text)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=_SILENT, limits=_LIMITS)
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            error = trial.get_error()
            raise ConstraintError(explain(error), error)
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary in llguidance's form, built for the first grammar."""
        end = len(self._pieces)
        control = [*sorted(self._control), end]
        pieces = [*self._pieces, b""]
        for token in control:
            # The library treats tokens of equal bytes as the same token.
            pieces[token] = b"<|%d|>" % token
        vocabulary: Any = _Vocabulary(pieces, control, end)
        return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=end)


def _remainders(text: str) -> int:
    """Return an upper bound on the states for divisors in a grammar's schemas."""
    divisors = [Decimal(divisor) for divisor in _DIVISOR.findall(text)]
    if not divisors:
        return 0
    if any(
        abs(divisor.adjusted()) > _DIGITS_MAX or len(divisor.as_tuple().digits) > _DIGITS_MAX for divisor in divisors
    ):
        return _REMAINDERS_MAX + 1
    scale = Decimal(10) ** _DIGITS_MAX
    # Values of merged schemas are divisible by both divisors; trailing zeros cost no states.
    common = 1
    for divisor in divisors:
        common = math.lcm(common, abs(int(divisor * scale)))
        if common.bit_length() > _COMMON_BITS_MAX:
            return _REMAINDERS_MAX + 1
    while common and common % 10 == 0:
        common //= 10
    return common * text.count("{")


class _Vocabulary:
    """The attributes of a vocabulary that llguidance reads; one more token, the last, stands for all end tokens."""

    def __init__(self, pieces: list[bytes], control: list[int], end: int) -> None:
        self.tokens = pieces
        self.special_token_ids = control
        self.eos_token_id = end
        self.bos_token_id = None

    def __call__(self, _text: bytes | str) -> list[int]:
        """Return no tokens: only forcing would tokenize text."""
        return []
