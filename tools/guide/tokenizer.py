"""Byte-level BPE as llama.cpp reads it: `tokenizer.ggml.model` gpt2, `tokenizer.ggml.pre` gpt-2."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

BEGIN, END, TURN, DONE = "<|begin|>", "<|end|>", "<|turn|>", "<|done|>"
CONTROL = (BEGIN, END, TURN, DONE)
SMALLEST_COUNT = 2  # a pair seen once is not worth a token; rare characters stay split into bytes

# GPT-2's split. Letters and digits are Python's here and Unicode's there: equal on the training texts.
_WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+",
)


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_in = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in stand_in)
    stand_in.update({byte: chr(0x100 + index) for index, byte in enumerate(hidden)})
    return [stand_in[byte] for byte in range(256)]


_CHARACTERS = byte_characters()


def _split(text: str) -> list[str]:
    """The words of a text in stand-in characters."""
    return ["".join(_CHARACTERS[byte] for byte in word.encode()) for word in _WORDS.findall(text)]


@dataclass
class Tokenizer:
    """A vocabulary (control tokens, bytes, merged pieces) and the merges in the order they apply."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    _ids: dict[str, int] = field(init=False)
    _ranks: dict[tuple[str, str], int] = field(init=False)
    _cache: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}

    def id_of(self, token: str) -> int:
        """The id of a control token."""
        return self._ids[token]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; control tokens written in it are ordinary text."""
        ids: list[int] = []
        for word in _split(text):
            if word not in self._cache:
                self._cache[word] = [self._ids[piece] for piece in self._merge(word)]
            ids += self._cache[word]
        return ids

    def _merge(self, word: str) -> list[str]:
        """One word cut into pieces: the earliest learned pair is joined first."""
        pieces = list(word)
        while len(pieces) > 1:
            pair = min(pairwise(pieces), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if pair not in self._ranks:
                break
            pieces = _join(pieces, pair)
        return pieces


def _join(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with every occurrence of the pair made one."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn merges from the texts until the vocabulary has `size` tokens or nothing repeats."""
    counts = Counter(word for text in texts for word in _split(text))
    words = {word: list(word) for word in counts}
    tokens, merges = [*CONTROL, *_CHARACTERS], list[tuple[str, str]]()
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        best, count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if count < SMALLEST_COUNT:
            break
        merges.append(best)
        tokens.append("".join(best))
        words = {word: _join(pieces, best) for word, pieces in words.items()}
    return Tokenizer(tokens, merges)
