"""The vocabulary of a model: text into tokens and back, by a table of every token's bytes."""

import ctypes
import re
from functools import cached_property
from typing import Any

from llama_cpp import llama_cpp as binding

from car_base.ipc.refusal import Refusal
from car_engine.llama.model import LlamaModel
from car_engine.prompt.vocabulary import FillTokens, Separators

# Some pre-tokenizers match with regular expressions that recurse for each character of a match, 300 to 500 bytes of
# stack each. Every match ends at the latest where one of these runs ends.
_RUNS = (
    re.compile(r"[^ \t-\r]++"),
    re.compile(r"\s++"),
    re.compile(r"[ A-Za-z\x80-\U0010ffff]++"),
)
# Characters of a run that is never refused; a run of twice as many always is.
LONGEST_RUN = 250_000
# Runs for which a pre-tokenizer takes time that grows at least with their square: minutes for 200,000 digits.
_SLOW = {"superbpe": re.compile(r"\d++"), "jais-2": re.compile(r"\s++")}
LONGEST_SLOW_RUN = 2_000


def check_runs(text: str, pre: str | None = None) -> None:
    """Raise Refusal for a text with a longer run: without whitespace, of whitespace alone, or of bare words.

    `pre` names the model's pre-tokenizer.
    """
    if pre in _SLOW:
        _check(text, LONGEST_SLOW_RUN, (_SLOW[pre],))
    _check(text, LONGEST_RUN, _RUNS)


def _check(text: str, most: int, runs: tuple[re.Pattern[str], ...]) -> None:
    for start in range(0, len(text) - most + 1, most):
        if any(run.fullmatch(text, start, start + most) for run in runs):
            raise Refusal("limit", limit="max_unbroken_characters", value=most)


_PIECE_BYTES = 1024
_NO_TOKEN = -1  # it would end the engine at its decode
_SPACES = re.compile(r"\s{2,}")
_FILL = (binding.llama_vocab_fim_pre, binding.llama_vocab_fim_suf, binding.llama_vocab_fim_mid)


class Vocabulary:
    """The tokens of one model; thread-safe."""

    def __init__(self, model: LlamaModel) -> None:
        self.handle = model.vocab
        self._pre = model.metadata.text("tokenizer.ggml.pre")
        self.size = int(binding.llama_vocab_n_tokens(self.handle))
        self.pieces = [self._piece(token, special=False) for token in range(self.size)]
        self._special_pieces = [self._piece(token, special=True) for token in range(self.size)]
        # A template has one set of markers, so that one table serves all its requests.
        self._shown: dict[tuple[str, ...], list[bytes]] = {(): self.pieces}
        self.control = frozenset(t for t in range(self.size) if self._special_pieces[t] and not self.pieces[t])
        self.ends = frozenset(t for t in range(self.size) if binding.llama_vocab_is_eog(self.handle, t))
        self.longest_piece = max(map(len, self._special_pieces), default=1)
        self.begin = int(binding.llama_vocab_bos(self.handle))
        self.end = int(binding.llama_vocab_eos(self.handle))
        self.adds_begin = bool(binding.llama_vocab_get_add_bos(self.handle))
        # Texts of the tokens that plain detokenizing leaves out: they count only if control tokens are parsed.
        self.specials = sorted(
            {self._special_pieces[token].decode("utf-8", "replace") for token in self.control},
            key=len,
            reverse=True,
        )

    @cached_property
    def separators(self) -> Separators:
        """The tokens around a query and a document, for models that rank."""
        separator, end = binding.llama_vocab_sep(self.handle), self.end
        end = separator if end == binding.LLAMA_TOKEN_NULL else end
        ends = _given(end, binding.llama_vocab_get_add_eos(self.handle))
        middle = [*ends, *_given(separator, binding.llama_vocab_get_add_sep(self.handle))]
        # Word pieces always end with their separator, also if the file does not say so.
        is_word_pieces = binding.llama_vocab_type(self.handle) == binding.LLAMA_VOCAB_TYPE_WPM
        return Separators(_given(self.begin, self.adds_begin), middle, _given(end, is_word_pieces) or ends)

    @cached_property
    def fill(self) -> FillTokens | None:
        """The tokens around a gap to fill; None for a model that fills none."""
        prefix, suffix, middle = (int(find(self.handle)) for find in _FILL)
        return FillTokens(prefix, suffix, middle) if min(prefix, suffix, middle) >= 0 else None

    def text_of(self, token: int) -> str:
        """Return a token's text, also a control token's; empty for -1."""
        return self._special_pieces[token].decode("utf-8", "replace") if 0 <= token < self.size else ""

    def difference(self, model: "Vocabulary") -> str | None:
        """Return the first difference between these tokens and another model's tokens; None if all are the same."""
        if self.size != model.size:
            return f"it has {self.size:,} tokens, the model {model.size:,}"
        pairs = zip(self._special_pieces, model._special_pieces, strict=True)
        token = next((token for token, (ours, its) in enumerate(pairs) if ours != its), None)
        if token is not None:
            return f"its token {token:,} is {self.text_of(token)!r}, that of the model {model.text_of(token)!r}"
        specials = {"begin": (self.begin, model.begin), "end": (self.end, model.end)}
        name = next((name for name, (ours, its) in specials.items() if ours != its), None)
        if name is not None:
            return f"its {name} token is {specials[name][0]}, that of the model {specials[name][1]}"
        return None if self.ends == model.ends else f"its answers end with {sorted(self.ends ^ model.ends)[0]}, or not"

    def showing(self, markers: tuple[str, ...]) -> list[bytes]:
        """Return the pieces of all tokens; control tokens whose text is a marker are written out."""
        if markers not in self._shown:
            texts = {marker.encode() for marker in markers}
            special = self._special_pieces
            self._shown[markers] = [special[t] if special[t] in texts else piece for t, piece in enumerate(self.pieces)]
        return self._shown[markers]

    def token_of(self, text: str) -> int | None:
        """Return the control or user-defined token with this text, None without one."""
        tokens = self._tokens(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 and self.text_of(tokens[0]) == text else None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens. Needs a large stack.

        Raises Refusal for text that would need a larger stack, or has parts for which the model has no token.
        """
        tokens = self._tokens(text, add_special=add_special, parse_special=parse_special)
        if _NO_TOKEN in tokens:
            raise Refusal("model_unavailable", lacks="tokens", why="its vocabulary has none for a part of the text")
        return tokens

    def _tokens(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        check_runs(text, self._pre)
        if self._pre == "whitespace":
            # llama.cpp crashes on two spaces in a row; under these rules spaces do not become tokens.
            text = _SPACES.sub(" ", text)
        data = text.encode()
        room = len(data) + 2
        count, tokens = self._cut(data, room, add_special=add_special, parse_special=parse_special)
        if count < 0:
            # Normalization may make a text longer.
            count, tokens = self._cut(data, -count, add_special=add_special, parse_special=parse_special)
        cut: list[int] = tokens[:count]
        return cut

    def _cut(self, data: bytes, room: int, *, add_special: bool, parse_special: bool) -> tuple[int, Any]:
        """Return the number of tokens and the tokens; the number is negative if they exceed `room`."""
        tokens = (binding.llama_token * room)()
        count = binding.llama_tokenize(self.handle, data, len(data), tokens, room, add_special, parse_special)
        return int(count), tokens

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write tokens out; bytes that are not UTF-8 become U+FFFD."""
        table = self._special_pieces if special else self.pieces
        return b"".join(table[token] for token in tokens).decode("utf-8", "replace")

    def _piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        length = binding.llama_token_to_piece(self.handle, token, buffer, _PIECE_BYTES, 0, special)
        return buffer.raw[: max(0, length)]


def _given(token: int, wanted: bool) -> list[int]:
    """Return the token if it is wanted and the model has it."""
    return [token] if wanted and token != binding.LLAMA_TOKEN_NULL else []
