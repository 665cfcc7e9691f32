"""The reasons for which a model file is refused: fixed texts, with figures and without a text of the file."""

from enum import StrEnum


class Flaw(StrEnum):
    """A fault of a model file."""

    NOT_DOWNLOADED = "the file has not been downloaded"
    UNREADABLE = "the file cannot be read"
    NOT_A_FILE = "this is not a regular file"
    NOT_GGUF = "the file is not a GGUF"
    BYTE_ORDER = "the file is written in the other byte order"
    VERSION = "this GGUF version is not supported"
    CUT_SHORT = "the file is cut short"
    COUNTS = "the file holds less than its header declares"
    TOO_LARGE = "the header is too large"
    KEY = "a key is malformed"
    KEY_TWICE = "a key is given twice"
    VALUE_TYPE = "a value has an unknown type"
    VALUE = "a value is malformed"
    NESTED = "an array contains arrays"
    ALIGNMENT = "the alignment is impossible"
    ARCHITECTURE = "the architecture is not named"
    NO_TENSORS = "the file contains no tensors"
    TENSOR_NAME = "a tensor's name is malformed"
    TENSOR_TWICE = "a tensor is given twice"
    UNUSABLE_TYPE = "a tensor has a type that llama.cpp cannot compute with"
    SHAPE = "a tensor's shape is impossible"
    UNALIGNED = "a tensor is not aligned"
    OUTSIDE = "a tensor lies outside the file"
    OVERLAP = "tensors overlap"
    TOKENIZER = "the tokenizer's tables disagree"
    SAME_TEXT = "two tokens have the same text"
    SPECIAL = "a special token is not in the vocabulary"
    NO_VOCABULARY = "the model has no vocabulary"
    BYTES = "the vocabulary cannot spell every text"
    HYPERPARAMETER = "a size of the model is impossible"
    HEADS = "the numbers of attention heads disagree"
    EXPERTS = "the numbers of experts disagree"
    ROPE = "the scaling of positions is unknown"
    ADAPTER = "the file is a LoRA adapter: name it in `adapters` of its model"
    PROJECTOR = "the file is a projector: name it as `projector` of its model"
    DIFFUSION = "the model writes text by diffusion, which card does not serve"
    TRANSLATES = "the model is an encoder with or without a decoder, which card does not serve"
    DRAFTS = "the model guesses for another model and writes nothing by itself, which card does not serve"
    SOUNDS = "the model writes sound, which card does not serve"
    NO_ADAPTER = "the file is not a LoRA adapter"
    NO_PROJECTOR = "the file is not a projector"


class InvalidModel(Exception):
    """A file must not be loaded; the message has the file's role (not of the model itself), the reason and figures."""

    def __init__(self, reason: Flaw, detail: str | None = None, *, role: str | None = None) -> None:
        super().__init__(": ".join(part for part in (role, reason.value, detail) if part is not None))
        self.reason = reason
        self.detail = detail


def refuse(reason: Flaw, detail: str | None = None, *, when: bool) -> None:
    """Raise InvalidModel when a fault is present."""
    if when:
        raise InvalidModel(reason, detail)
