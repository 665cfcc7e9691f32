"""Text into tokens and back, and the table of every token's bytes."""

import ctypes
import re
from typing import Any

from llama_cpp import llama_cpp as binding

from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.unbroken import check_unbroken

_PIECE_BYTES = 1024
_SPACES = re.compile(r"\s{2,}")


class Vocabulary:
    """The tokens of one model; safe to use from several threads."""

    def __init__(self, model: LlamaModel) -> None:
        self.handle = model.vocab
        self._pre = model.metadata("tokenizer.ggml.pre")
        self.size = int(binding.llama_vocab_n_tokens(self.handle))
        self.pieces = [self._piece(token, special=False) for token in range(self.size)]
        self._special_pieces = [self._piece(token, special=True) for token in range(self.size)]
        # A template has one set of markers; what is written out for it serves all requests.
        self._shown: dict[tuple[str, ...], list[bytes]] = {(): self.pieces}
        self.control = frozenset(t for t in range(self.size) if self._special_pieces[t] and not self.pieces[t])
        self.ends = frozenset(t for t in range(self.size) if binding.llama_vocab_is_eog(self.handle, t))
        self.longest_piece = max(map(len, self._special_pieces), default=1)
        self.begin = int(binding.llama_vocab_bos(self.handle))
        self.end = int(binding.llama_vocab_eos(self.handle))
        self.adds_begin = bool(binding.llama_vocab_get_add_bos(self.handle))
        # Tokens whose text means something only when it is parsed: those that plain detokenizing leaves out.
        self.specials = sorted(
            {self._special_pieces[token].decode("utf-8", "replace") for token in self.control},
            key=len,
            reverse=True,
        )

    def text_of(self, token: int) -> str:
        """Return a token's text, also where it is a control token; empty for none."""
        return self._special_pieces[token].decode("utf-8", "replace") if 0 <= token < self.size else ""

    def showing(self, markers: tuple[str, ...]) -> list[bytes]:
        """Return the pieces of all tokens, with those control tokens written out whose text is a marker."""
        if markers not in self._shown:
            texts = {marker.encode() for marker in markers}
            special = self._special_pieces
            self._shown[markers] = [special[t] if special[t] in texts else piece for t, piece in enumerate(self.pieces)]
        return self._shown[markers]

    def token_of(self, text: str) -> int | None:
        """Return the control or user-defined token that is written so; None where there is none."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 and self.text_of(tokens[0]) == text else None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens; needs a large stack, and raises Refusal where it would need a larger one."""
        check_unbroken(text, self._pre)
        if self._pre == "whitespace":
            # llama.cpp ends the process at two spaces in a row; with these rules no space becomes a token.
            text = _SPACES.sub(" ", text)
        data = text.encode()
        room = len(data) + 2
        count, tokens = self._cut(data, room, add_special=add_special, parse_special=parse_special)
        if count < 0:
            # Rules that normalize a text may make it longer.
            count, tokens = self._cut(data, -count, add_special=add_special, parse_special=parse_special)
        cut: list[int] = tokens[:count]
        return cut

    def _cut(self, data: bytes, room: int, *, add_special: bool, parse_special: bool) -> tuple[int, Any]:
        """Return how many tokens there are, and them; where they are more than `room` less than 0, and none."""
        tokens = (binding.llama_token * room)()
        count = binding.llama_tokenize(self.handle, data, len(data), tokens, room, add_special, parse_special)
        return int(count), tokens

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write tokens out; bytes that are no UTF-8 appear as U+FFFD."""
        table = self._special_pieces if special else self.pieces
        return b"".join(table[token] for token in tokens).decode("utf-8", "replace")

    def _piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        length = binding.llama_token_to_piece(self.handle, token, buffer, _PIECE_BYTES, 0, special)
        return buffer.raw[: max(0, length)]
