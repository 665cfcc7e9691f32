"""Model files by hand: every fault with the reason that refuses it, and unusual files that are valid."""

import struct

from car_daemon.gguf.invalid import Flaw
from tests.daemon.gguf.files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    Gguf,
    model,
    numbers,
    plain_tensors,
    plain_values,
    string,
    strings,
    tensor,
    text,
    u32,
)


def one(shape: tuple[int, ...], type: int = 0, offset: int = 0, name: str | bytes = "t") -> Gguf:
    """Return a model with one tensor."""
    return Gguf(tensors=[tensor(name, shape, type, offset)])


def keyed(key: str | bytes, value: bytes = u32(1)) -> Gguf:
    """Return a model with one more key."""
    return Gguf(values=plain_values() | {key: value})


def tokens(*names: str | bytes) -> Gguf:
    """Return a model with a vocabulary and nothing else about it."""
    return Gguf(values={"general.architecture": text("llama"), "tokenizer.ggml.tokens": strings(*names)})


def spelled() -> Gguf:
    """Return a model whose tokens are the bytes, most of them by number, letters as they are."""
    names = [chr(byte) if 0x40 < byte < 0x5B else f"<0x{byte:02X}>" for byte in range(256)]
    return Gguf(values=tokens(*names).values | {"tokenizer.ggml.model": text("llama")})


def bert(type: int) -> Gguf:
    """Return a model of whole words, one of which has a type."""
    types = numbers(I32, 1, 1, 1, type)
    return model(tokenizer__ggml__model=text("bert"), tokenizer__ggml__token_type=types)


def headless(name: str) -> Gguf:
    """Return a model with a tensor but without attention heads."""
    none: dict[str | bytes, bytes] = {"llama.attention.head_count": u32(0), "llama.attention.head_count_kv": u32(0)}
    return Gguf(values=plain_values() | none, tensors=[tensor(name, (32, 4))])


def epsilon(value: float) -> Gguf:
    """Return a model with what its norms add."""
    return model(llama__attention__layer_norm_rms_epsilon=struct.pack("<If", F32, value))


FAULTS: list[tuple[str, bytes, Flaw]] = [
    ("empty", b"", Flaw.NOT_GGUF),
    ("three bytes", b"GGU", Flaw.NOT_GGUF),
    ("another magic", Gguf(magic=b"ggjt").bytes(), Flaw.NOT_GGUF),
    ("only the magic", b"GGUF", Flaw.CUT_SHORT),
    ("no counts", b"GGUF\3\0\0\0", Flaw.CUT_SHORT),
    ("version 0", Gguf(version=struct.pack("<I", 0)).bytes(), Flaw.VERSION),
    ("version 1", Gguf(version=struct.pack("<I", 1)).bytes(), Flaw.VERSION),
    ("version 4", Gguf(version=struct.pack("<I", 4)).bytes(), Flaw.VERSION),
    ("big-endian", Gguf(version=struct.pack(">I", 3)).bytes(), Flaw.BYTE_ORDER),
    ("more keys than bytes", Gguf(key_count=2**63).bytes(), Flaw.COUNTS),
    ("more tensors than bytes", Gguf(tensor_count=2**64 - 1).bytes(), Flaw.COUNTS),
    ("cut in the keys", Gguf().bytes()[:300], Flaw.CUT_SHORT),
    ("an empty key", keyed("").bytes(), Flaw.KEY),
    ("a long key", keyed("k" * 600).bytes(), Flaw.KEY),
    ("a zero byte in a key", keyed(b"a\0b").bytes(), Flaw.KEY),
    ("a key that is no text", keyed(b"\xff\xfe").bytes(), Flaw.KEY),
    ("a key's length past the end", Gguf(repeated=struct.pack("<Q", 2**62)).bytes(), Flaw.CUT_SHORT),
    ("a key twice", Gguf(repeated=string("general.name") + text("again")).bytes(), Flaw.KEY_TWICE),
    ("type 13", keyed("a", struct.pack("<II", 13, 0)).bytes(), Flaw.VALUE_TYPE),
    ("type 13 in an array", keyed("a", struct.pack("<IIQ", ARRAY, 13, 0)).bytes(), Flaw.VALUE_TYPE),
    ("an array of arrays", keyed("a", struct.pack("<IIQ", ARRAY, ARRAY, 1)).bytes(), Flaw.NESTED),
    ("a truth of 2", keyed("a", struct.pack("<IB", BOOL, 2)).bytes(), Flaw.VALUE),
    ("a text past the end", keyed("a", struct.pack("<IQ", STRING, 2**40)).bytes(), Flaw.CUT_SHORT),
    ("a text of 2**64 - 1", keyed("a", struct.pack("<IQ", STRING, 2**64 - 1)).bytes(), Flaw.CUT_SHORT),
    ("an array past the end", keyed("a", struct.pack("<IIQ", ARRAY, U8, 2**40)).bytes(), Flaw.COUNTS),
    ("strings past the end", keyed("a", struct.pack("<IIQ", ARRAY, STRING, 2**61)).bytes(), Flaw.COUNTS),
    ("one long string", keyed("a", struct.pack("<IIQQ", ARRAY, STRING, 1, 2**40)).bytes(), Flaw.CUT_SHORT),
    ("alignment 0", keyed("general.alignment", u32(0)).bytes(), Flaw.ALIGNMENT),
    ("alignment 48", keyed("general.alignment", u32(48)).bytes(), Flaw.ALIGNMENT),
    ("alignment 4", keyed("general.alignment", u32(4)).bytes(), Flaw.ALIGNMENT),
    ("alignment 2**31", keyed("general.alignment", u32(2**31)).bytes(), Flaw.ALIGNMENT),
    ("alignment as a float", keyed("general.alignment", struct.pack("<If", F32, 32.0)).bytes(), Flaw.ALIGNMENT),
    ("alignment as text", keyed("general.alignment", text("32")).bytes(), Flaw.ALIGNMENT),
    ("no architecture", model(general__architecture=None).bytes(), Flaw.ARCHITECTURE),
    ("an empty architecture", model(general__architecture=text("")).bytes(), Flaw.ARCHITECTURE),
    ("a long architecture", model(general__architecture=text("a" * 65)).bytes(), Flaw.ARCHITECTURE),
    ("an architecture of no text", model(general__architecture=text(b"\xff")).bytes(), Flaw.ARCHITECTURE),
    ("an architecture that is a number", model(general__architecture=u32(1)).bytes(), Flaw.ARCHITECTURE),
    ("no tensors", Gguf(tensors=[]).bytes(), Flaw.NO_TENSORS),
    ("a tensor without a name", one((32,), name="").bytes(), Flaw.TENSOR_NAME),
    ("a tensor's name of 64 bytes", one((32,), name="t" * 64).bytes(), Flaw.TENSOR_NAME),
    ("a zero byte in a tensor's name", one((32,), name=b"t\0").bytes(), Flaw.TENSOR_NAME),
    ("a tensor twice", Gguf(tensors=[tensor("t", (32,)), tensor("t", (32,), 0, 512)]).bytes(), Flaw.TENSOR_TWICE),
    ("no dimensions", one(()).bytes(), Flaw.SHAPE),
    ("five dimensions", one((1, 1, 1, 1, 1)).bytes(), Flaw.SHAPE),
    ("a dimension of 0", one((32, 0)).bytes(), Flaw.SHAPE),
    ("a negative dimension", one((2**64 - 32, 1)).bytes(), Flaw.SHAPE),
    ("dimensions that overflow", one((2**32, 2**32)).bytes(), Flaw.SHAPE),
    ("dimensions that wrap to little", one((2**33, 2**33, 1, 2**62)).bytes(), Flaw.SHAPE),
    ("a row of half a block", one((48,), type=8).bytes(), Flaw.SHAPE),
    ("an unknown type past the end", one((32,), type=77, offset=4096).bytes(), Flaw.OUTSIDE),
    ("an unknown type of nothing", one((32, 0), type=77).bytes(), Flaw.SHAPE),
    (
        "unknown types in one place",
        Gguf(tensors=[tensor("a", (32,), 77), tensor("b", (32,), 77)]).bytes(),
        Flaw.OVERLAP,
    ),
    ("a matrix of 32-bit integers", one((32, 2), type=26, name="blk.0.ffn_up.weight").bytes(), Flaw.UNUSABLE_TYPE),
    ("a norm of 16 bits", one((32,), type=1, name="output_norm.weight").bytes(), Flaw.UNUSABLE_TYPE),
    ("a bias of 16 bits", one((32,), type=1, name="blk.0.attn_k.bias").bytes(), Flaw.UNUSABLE_TYPE),
    ("an offset between", one((32,), offset=8).bytes(), Flaw.UNALIGNED),
    ("an offset past the end", one((32,), offset=4096).bytes(), Flaw.OUTSIDE),
    ("an offset that wraps", one((32,), offset=2**64 - 32).bytes(), Flaw.OUTSIDE),
    ("a size past the end", one((32, 9)).bytes(), Flaw.OUTSIDE),
    ("data cut short", Gguf().bytes()[:-1], Flaw.OUTSIDE),
    ("overlap", Gguf(tensors=[tensor("a", (32, 4)), tensor("b", (32,), 0, 480)]).bytes(), Flaw.OVERLAP),
    ("the same place", Gguf(tensors=[tensor("a", (32,)), tensor("b", (32,))]).bytes(), Flaw.OVERLAP),
    ("few scores", model(tokenizer__ggml__scores=numbers(F32, 0)).bytes(), Flaw.TOKENIZER),
    ("scores of bytes", model(tokenizer__ggml__scores=numbers(U8, 0, 0, 0, 0)).bytes(), Flaw.TOKENIZER),
    ("few types", model(tokenizer__ggml__token_type=numbers(I32, 0)).bytes(), Flaw.TOKENIZER),
    ("types of floats", model(tokenizer__ggml__token_type=numbers(F32, 0, 0, 0, 0)).bytes(), Flaw.TOKENIZER),
    ("tokens of numbers", model(tokenizer__ggml__tokens=numbers(I32, 1)).bytes(), Flaw.TOKENIZER),
    ("tokens of one text", model(tokenizer__ggml__tokens=text("a")).bytes(), Flaw.TOKENIZER),
    ("merges of numbers", model(tokenizer__ggml__merges=numbers(I32, 1)).bytes(), Flaw.TOKENIZER),
    ("a charsmap of texts", model(tokenizer__ggml__precompiled_charsmap=strings("a")).bytes(), Flaw.TOKENIZER),
    ("a token twice", tokens("a", "b", "a").bytes(), Flaw.SAME_TEXT),
    ("a token twice up to a zero byte", tokens("a", b"a\0b").bytes(), Flaw.SAME_TEXT),
    ("no vocabulary by name", model(tokenizer__ggml__model=text("none")).bytes(), Flaw.NO_VOCABULARY),
    ("no bytes among tokens", model(tokenizer__ggml__model=text("llama")).bytes(), Flaw.BYTES),
    ("bytes among whole words", bert(6).bytes(), Flaw.TOKENIZER),
    ("bos outside", model(tokenizer__ggml__bos_token_id=u32(4)).bytes(), Flaw.SPECIAL),
    ("eos outside", model(tokenizer__ggml__eos_token_id=u32(2**31)).bytes(), Flaw.SPECIAL),
    ("eos as text", model(tokenizer__ggml__eos_token_id=text("2")).bytes(), Flaw.SPECIAL),
    ("no blocks", model(llama__block_count=u32(0)).bytes(), Flaw.HYPERPARAMETER),
    ("513 blocks", model(llama__block_count=u32(513)).bytes(), Flaw.HYPERPARAMETER),
    ("no context", model(llama__context_length=u32(0)).bytes(), Flaw.HYPERPARAMETER),
    ("a context of 2**31", model(llama__context_length=u32(2**31)).bytes(), Flaw.HYPERPARAMETER),
    ("no width", model(llama__embedding_length=u32(0)).bytes(), Flaw.HYPERPARAMETER),
    ("a width as text", model(llama__embedding_length=text("32")).bytes(), Flaw.HYPERPARAMETER),
    ("widths as texts", model(llama__embedding_length=strings("32")).bytes(), Flaw.HYPERPARAMETER),
    ("heads of none", model(llama__attention__head_count=numbers(I32)).bytes(), Flaw.HYPERPARAMETER),
    ("heads of floats", model(llama__attention__head_count=numbers(F32, 4, 4)).bytes(), Flaw.HYPERPARAMETER),
    ("2**31 heads", model(llama__attention__head_count=u32(2**31)).bytes(), Flaw.HYPERPARAMETER),
    ("heads that do not divide", model(llama__attention__head_count_kv=u32(3)).bytes(), Flaw.HEADS),
    ("a layer's heads", model(llama__attention__head_count_kv=numbers(I32, 2, 3)).bytes(), Flaw.HEADS),
    ("attention without heads", headless("blk.0.attn_q.weight").bytes(), Flaw.HEADS),
    ("a negative epsilon", epsilon(-1.0).bytes(), Flaw.HYPERPARAMETER),
    ("an epsilon that is no number", epsilon(float("nan")).bytes(), Flaw.HYPERPARAMETER),
    ("experts unused", model(llama__expert_count=u32(8)).bytes(), Flaw.EXPERTS),
    ("more used than there are", model(llama__expert_used_count=u32(2)).bytes(), Flaw.EXPERTS),
    ("1025 experts", model(llama__expert_count=u32(1025)).bytes(), Flaw.HYPERPARAMETER),
    ("layers past the blocks", model(llama__nextn_predict_layers=u32(3)).bytes(), Flaw.HYPERPARAMETER),
    ("a projector", model(general__architecture=text("clip")).bytes(), Flaw.PROJECTOR),
    ("an adapter", model(general__type=text("adapter")).bytes(), Flaw.ADAPTER),
    ("diffusion", model(general__architecture=text("llada")).bytes(), Flaw.DIFFUSION),
    ("an encoder with a decoder", model(general__architecture=text("t5")).bytes(), Flaw.TRANSLATES),
    ("a draft alone", model(general__architecture=text("eagle3")).bytes(), Flaw.DRAFTS),
    ("a writer of sound", model(general__architecture=text("wavtokenizer-dec")).bytes(), Flaw.SOUNDS),
    ("an unknown scaling", model(llama__rope__scaling__type=text("mine")).bytes(), Flaw.ROPE),
]

UNUSUAL: list[tuple[str, Gguf]] = [
    ("by hand", Gguf()),
    ("unknown keys", keyed("any.Key-1 of/mine", numbers(I32, 1))),
    ("a type that was removed", one((32,), type=4)),
    ("an unknown type", one((32,), type=2**32 - 1)),
    ("a norm of an unknown type", one((32,), type=77, name="output_norm.weight")),
    ("an unknown architecture", model(general__architecture=text("new-arch2"))),
    ("a gap between tensors", Gguf(tensors=[tensor("a", (32,)), tensor("b", (32,), 0, 896)])),
    ("tensors in another order", Gguf(tensors=plain_tensors()[::-1])),
    ("alignment 64", Gguf(values=plain_values() | {"general.alignment": u32(64)}, data=bytes(1088))),
    ("no vocabulary", Gguf(values={"general.architecture": text("plain")})),
    ("several empty tokens", tokens("", "", "a")),
    ("bytes among tokens", spelled()),
    ("whole words", bert(1)),
    ("an epsilon", epsilon(1e-5)),
    ("a table of integers", one((32, 2), type=26, name="blk.0.ffn_gate_tid2eid.weight")),
    ("integers that are no weights", one((32,), type=27, name="d2t")),
    ("no padding token", model(tokenizer__ggml__padding_token_id=u32(2**32 - 1))),
    ("a padding token outside", model(tokenizer__ggml__padding_token_id=u32(4))),
    ("no begin token", model(tokenizer__ggml__bos_token_id=u32(2**32 - 1))),
    ("more scores than tokens", model(tokenizer__ggml__scores=numbers(F32, 0, 0, 0, 0, 0))),
    ("heads by layer", model(llama__attention__head_count_kv=numbers(I32, 0, 2))),
    ("layers without heads", headless("blk.0.ssm_in.weight")),
    ("experts", model(llama__expert_count=u32(8), llama__expert_used_count=u32(2))),
    ("the first of three parts", keyed("split.count", u32(3))),
    ("a first part without tensors", Gguf(values=plain_values() | {"split.count": u32(2)}, tensors=[])),
    ("a later part", Gguf(values={"split.count": u32(2), "split.no": u32(1)})),
]
