"""Writes the trained model as a GGUF file: matrices as q8_0, norms as f32."""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tools.guide.network import NORM_EPSILON, ROPE_BASE, Shape
from tools.guide.samples import CONTEXT
from tools.guide.tokenizer import BEGIN, CONTROL, DONE, END, Tokenizer

TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def write(path: Path, weights: dict[str, NDArray[np.float32]], shape: Shape, tokenizer: Tokenizer) -> None:
    """Write the file in one go; the same weights give the same bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_description(writer)
    _add_shape(writer, shape)
    _add_tokenizer(writer, tokenizer)
    for name, weight in weights.items():
        if weight.ndim > 1:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_description(writer: gguf.GGUFWriter) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("card guide")
    writer.add_description("The built-in guide of card: it answers a few dozen questions about card, and nothing else.")
    writer.add_author("the card project")
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types([control if token in CONTROL else normal for token in tokenizer.tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.id_of(BEGIN))
    writer.add_eos_token_id(tokenizer.id_of(END))
    writer.add_eot_token_id(tokenizer.id_of(DONE))
    writer.add_pad_token_id(tokenizer.id_of(END))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))
