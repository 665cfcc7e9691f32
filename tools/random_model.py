"""Write a llama-architecture GGUF with random weights, for benchmarks: `python tools/random_model.py -o PATH`.

The text that such a model writes is nonsense, but always printable ASCII; it costs what a real model of the same
shape costs.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = "\u0120"  # how the gpt2 vocabulary writes a leading space
CONTROL = ("<|begin|>", "<|end|>")
TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- message['role'] + ': ' + message['content'] + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}"
)
TYPES = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
LOGIT_SPREAD = 3.0  # wide enough that a token of logit 0, such as the end token, is hardly ever drawn


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int


PRESETS = {
    "135m": Shape(30, 576, 9, 3, 1536, 49152, 8192),  # SmolLM-135M
    "tiny": Shape(2, 64, 4, 2, 192, 512, 2048),
}


def generate(path: Path | str, preset: str = "135m", type: str = "q8_0", seed: int = 1) -> None:
    """Write the model of a preset; the same arguments give the same file."""
    shape = PRESETS[preset]
    quantization, file_type = TYPES[type]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random {preset}")
    writer.add_description("Random weights for benchmarks: the text it writes means nothing.")
    writer.add_file_type(file_type)
    _add_shape(writer, shape)
    _add_vocabulary(writer, shape.vocabulary)
    for name, weight in _weights(shape, np.random.default_rng(seed)):
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Control tokens, all bytes, then made-up pieces, each with the merge that forms it."""
    merges = list(islice(_merges(), size - len(CONTROL) - 256))
    tokens = [*CONTROL, *_byte_characters(), *("".join(pair) for pair in merges)]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in CONTROL else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


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


def _weights(shape: Shape, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by name; the embedding is also the output projection."""

    def matrix(rows: int, columns: int, spread: float = 1.0) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(spread * columns**-0.5)

    def ones() -> NDArray[np.float32]:
        return np.ones(shape.width, dtype=np.float32)

    width, wide = shape.width, shape.feed_forward
    kv_width = width // shape.heads * shape.kv_heads
    yield "token_embd.weight", _embedding(matrix(shape.vocabulary, width, LOGIT_SPREAD))
    yield "output_norm.weight", ones()
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", ones()
        yield block + "attn_q.weight", matrix(width, width)
        yield block + "attn_k.weight", matrix(kv_width, width)
        yield block + "attn_v.weight", matrix(kv_width, width)
        yield block + "attn_output.weight", matrix(width, width)
        yield block + "ffn_norm.weight", ones()
        yield block + "ffn_gate.weight", matrix(wide, width)
        yield block + "ffn_up.weight", matrix(wide, width)
        yield block + "ffn_down.weight", matrix(width, wide)


def _embedding(random: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of control tokens and of bytes that are no printable ASCII become 0, and with them their logits."""
    unwanted = [byte for byte in range(256) if not 0x20 <= byte < 0x7F]
    random[: len(CONTROL)] = 0
    random[[len(CONTROL) + byte for byte in unwanted]] = 0
    return random


def main() -> None:
    """Parse the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="135m")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    generate(arguments.output, preset=arguments.preset, type=arguments.type, seed=arguments.seed)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
