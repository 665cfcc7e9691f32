"""Vocabularies that need no training: GPT-2's bytes with made-up pieces, and BERT's single characters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

import gguf

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PRINTABLE = range(0x20, 0x7F)
SPACE = "\u0120"  # how the gpt2 vocabulary writes a leading space
WORD_START = "\u2581"  # what llama.cpp puts before every word that BERT's vocabulary is to split
CONTROL = ("<|begin|>", "<|end|>")
WORD_PIECE_CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PRE = "gpt-2"
TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- message['role'] + ': ' + message['content'] + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}"
)


@dataclass(frozen=True)
class ByteVocabulary:
    """Control tokens, all bytes, made-up pieces each with the merge that forms it, then `extra`: text to is-control."""

    size: int
    template: str = TEMPLATE
    extra: Mapping[str, bool] = field(default_factory=dict)
    pre: str = PRE

    def add_to(self, metadata: gguf.GGUFWriter) -> None:
        """Add the vocabulary and the chat template."""
        merges = list(islice(_merges(), self.size - len(CONTROL) - 256 - len(self.extra)))
        pieces = [*_byte_characters(), *("".join(pair) for pair in merges)]
        metadata.add_tokenizer_model("gpt2")
        metadata.add_tokenizer_pre(self.pre)
        metadata.add_token_list([*CONTROL, *pieces, *self.extra])
        metadata.add_token_types(self._types(len(pieces)))
        metadata.add_token_merges([" ".join(pair) for pair in merges])
        metadata.add_bos_token_id(0)
        metadata.add_eos_token_id(1)
        metadata.add_add_bos_token(True)
        metadata.add_chat_template(self.template)

    def unwritten(self) -> list[int]:
        """Return the tokens that are no printable ASCII: a random answer is to hold none of them."""
        others = [len(CONTROL) + byte for byte in range(256) if byte not in PRINTABLE]
        return [*range(len(CONTROL)), *others, *range(self.size - len(self.extra), self.size)]

    def _types(self, pieces: int) -> list[gguf.TokenType]:
        normal, control, own = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
        extra = [control if is_control else own for is_control in self.extra.values()]
        return [control] * len(CONTROL) + [normal] * pieces + extra


def add_word_pieces(metadata: gguf.GGUFWriter) -> int:
    """Add BERT's control tokens, then every printable character, as the start of a word and within one; their count."""
    characters = [chr(code) for code in PRINTABLE if chr(code) != " " and not chr(code).isupper()]
    pieces = [start + character for start in (WORD_START, "") for character in characters]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    metadata.add_tokenizer_model("bert")
    metadata.add_token_list([*WORD_PIECE_CONTROL, *pieces])
    metadata.add_token_types([control] * len(WORD_PIECE_CONTROL) + [normal] * len(pieces))
    metadata.add_token_type_count(1)
    metadata.add_pad_token_id(0)
    metadata.add_unk_token_id(1)
    metadata.add_bos_token_id(2)
    metadata.add_sep_token_id(3)
    metadata.add_mask_token_id(4)
    return len(WORD_PIECE_CONTROL) + len(pieces)


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs that form words of one to four letters with a space before, and of two to four without."""
    yield from product(SPACE, LETTERS)
    yield from product(LETTERS, LETTERS)
    for length in (2, 3):
        for start in (SPACE, ""):
            for letters in product(LETTERS, repeat=length if start else length + 1):
                word = start + "".join(letters)
                yield word[:-1], word[-1]


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
