"""Generated model files have their purpose's traits: each is loaded and read by llama.cpp's own functions."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - the files are proved against llama.cpp itself
from llama_cpp import mtmd_cpp as vision  # noqa: TID251
from numpy.typing import NDArray

from car_engine.llama.library import silence
from tools.random_model import generate
from tools.random_models.adapter import generate_adapter
from tools.random_models.by_layer import generate_by_layer
from tools.random_models.embedding import WIDTH, generate_embedding
from tools.random_models.experts import generate_experts
from tools.random_models.hybrid import generate_delta_net, generate_mamba2_hybrid, generate_short_convolution
from tools.random_models.projector import IMAGE_TOKENS, generate_projector
from tools.random_models.recurrent import generate_recurrent
from tools.random_models.sliding import WINDOW, generate_sliding

Floats = NDArray[np.float32]

CONTEXT = 512
PROMPT = [101, 102, 103, 104]
EXTRA = {"<think>": False, "</think>": False, "<|im_start|>": True, "<|im_end|>": True}

GENERATORS: dict[str, Callable[[Path], None]] = {
    "llama": lambda path: generate(path, "tiny", "f16"),
    "extra": lambda path: generate(path, "tiny", "q4_0", template="{{ 1 }}", extra_tokens=EXTRA),
    "adapter": generate_adapter,
    "other adapter": lambda path: generate_adapter(path, seed=2, rank=2),
    "mean": generate_embedding,
    "cls": lambda path: generate_embedding(path, "cls"),
    "rank": lambda path: generate_embedding(path, "rank"),
    "recurrent": generate_recurrent,
    "convolution": generate_short_convolution,
    "delta net": generate_delta_net,
    "mamba 2": generate_mamba2_hybrid,
    "sliding": generate_sliding,
    "by layer": generate_by_layer,
    "experts": generate_experts,
    "projector": generate_projector,
}


class Loaded:
    """A model and one context of it."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.model = binding.llama_model_load_from_file(str(path).encode(), binding.llama_model_default_params())
        self.vocab = binding.llama_model_get_vocab(self.model)
        params = binding.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        for name, value in settings.items():
            setattr(params, name, value)
        self.context = binding.llama_init_from_model(self.model, params)
        self.memory = binding.llama_get_memory(self.context)

    def close(self) -> None:
        binding.llama_free(self.context)
        binding.llama_model_free(self.model)

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, those that every text starts and ends with included."""
        buffer = (binding.llama_token * CONTEXT)()
        count = binding.llama_tokenize(self.vocab, text.encode(), len(text.encode()), buffer, CONTEXT, True, special)
        return list(buffer[:count])

    def decode(self, tokens: list[int], start: int = 0) -> int:
        """Decode tokens of sequence 0; llama.cpp's code."""
        batch = binding.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.logits[row] = token, start + row, row == len(tokens) - 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        code: int = binding.llama_decode(self.context, batch)
        binding.llama_batch_free(batch)
        return code

    def logits(self) -> Floats:
        pointer = binding.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, (binding.llama_vocab_n_tokens(self.vocab),)).copy()

    def greedy(self, prompt: list[int], count: int = 16) -> list[int]:
        """Return what follows a prompt, the likeliest token each time."""
        binding.llama_memory_clear(self.memory, True)
        text = list(prompt)
        assert self.decode(text) == 0
        while len(text) < len(prompt) + count:
            text.append(int(self.logits().argmax()))
            assert self.decode(text[-1:], len(text) - 1) == 0
        return text[len(prompt) :]

    def embed(self, text: str, width: int = WIDTH) -> Floats:
        """Return the pooled embedding of a text."""
        assert self.decode(self.tokens(text)) == 0
        return np.ctypeslib.as_array(binding.llama_get_embeddings_seq(self.context, 0), (width,)).copy()

    def adapt(self, *adapters: tuple[Any, float]) -> None:
        """Set the adapters of the context, each with its scale."""
        handles = (binding.llama_adapter_lora_p_ctypes * len(adapters))(*(handle for handle, _ in adapters))
        scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in adapters))
        assert binding.llama_set_adapters_lora(self.context, handles, len(adapters), scales) == 0


Load = Callable[..., Loaded]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file of every kind."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{name}.gguf" for name in GENERATORS}
    for name, path in paths.items():
        GENERATORS[name](path)
    return paths


@pytest.fixture
def load(files: dict[str, Path]) -> Iterator[Load]:
    """Load files of a kind, closed after the test."""
    silence()
    loaded: list[Loaded] = []

    def open_file(name: str, **settings: object) -> Loaded:
        loaded.append(Loaded(files[name], **settings))
        return loaded[-1]

    yield open_file
    for one in loaded:
        one.close()


def adapter(loaded: Loaded, path: Path) -> Any:
    return binding.llama_adapter_lora_init(loaded.model, str(path).encode())


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_arguments_give_the_same_small_file(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    GENERATORS[name](tmp_path / "again.gguf")
    written = (tmp_path / "again.gguf").read_bytes()
    assert written == files[name].read_bytes()
    assert len(written) < 3_000_000


def test_extra_tokens_are_one_token_each(load: Load) -> None:
    extra = load("extra")
    first = binding.llama_vocab_n_tokens(extra.vocab) - len(EXTRA)
    assert extra.tokens("".join(EXTRA)) == [0, *range(first, first + len(EXTRA))]
    assert [binding.llama_vocab_is_control(extra.vocab, first + row) for row in range(len(EXTRA))] == [*EXTRA.values()]
    assert binding.llama_model_chat_template(extra.model, None) == b"{{ 1 }}"


def test_only_extra_tokens_that_are_no_control_tokens_are_found_in_plain_text(load: Load) -> None:
    extra = load("extra")
    assert len(extra.tokens("<think>", special=False)) == 2
    assert len(extra.tokens("<|im_start|>", special=False)) > 2


def test_an_adapter_changes_what_is_written_by_its_scale(load: Load, files: dict[str, Path]) -> None:
    llama = load("llama")
    base = llama.greedy(PROMPT)
    one = adapter(llama, files["adapter"])
    llama.adapt((one, 1.0))
    assert llama.greedy(PROMPT) != base
    llama.adapt((one, 0.0))
    assert llama.greedy(PROMPT) == base


def test_adapters_add_up_and_can_be_taken_off(load: Load, files: dict[str, Path]) -> None:
    llama = load("llama")
    base = llama.greedy(PROMPT)
    one, other = (adapter(llama, files[name]) for name in ("adapter", "other adapter"))
    written = []
    for adapters in ([(one, 1.0)], [(other, 1.0)], [(one, 1.0), (other, 1.0)]):
        llama.adapt(*adapters)
        written.append(llama.greedy(PROMPT))
    assert len({tuple(text) for text in (base, *written)}) == 4
    llama.adapt()
    assert llama.greedy(PROMPT) == base


def test_an_adapter_fits_only_its_own_architecture(load: Load, files: dict[str, Path]) -> None:
    assert not adapter(load("recurrent"), files["adapter"])
    assert not adapter(load("llama"), files["mean"])


@pytest.mark.parametrize("name", ["mean", "cls"])
def test_texts_have_embeddings_of_their_own(load: Load, name: str) -> None:
    bert = load(name, embeddings=True)
    assert binding.llama_model_n_embd_out(bert.model) == WIDTH
    first, other = bert.embed("hello world"), bert.embed("something else")
    assert np.abs(first - other).max() > 0.1
    assert np.array_equal(bert.embed("hello world"), first)


def test_an_embedding_model_has_no_memory_and_marks_the_ends_of_a_text(load: Load) -> None:
    bert = load("mean", embeddings=True)
    assert bert.memory is None
    tokens = bert.tokens("ab")
    assert (tokens[0], tokens[-1]) == (binding.llama_vocab_bos(bert.vocab), binding.llama_vocab_sep(bert.vocab))


def test_a_reranker_scores_a_pair(load: Load) -> None:
    reranker = load("rank", embeddings=True)
    assert binding.llama_pooling_type(reranker.context) == binding.LLAMA_POOLING_TYPE_RANK
    assert binding.llama_model_n_cls_out(reranker.model) == 1
    scores = [reranker.embed(f"what is it[SEP]{text}", 1) for text in ("a cat", "some dogs")]
    assert scores[0] != scores[1]


def test_a_recurrent_memory_refuses_to_cut_a_tail(load: Load) -> None:
    mamba = load("recurrent")
    assert binding.llama_model_is_recurrent(mamba.model)
    assert mamba.decode(PROMPT) == 0
    assert not binding.llama_memory_seq_rm(mamba.memory, 0, 2, -1)
    assert binding.llama_memory_seq_pos_max(mamba.memory, 0) == len(PROMPT) - 1
    assert binding.llama_memory_seq_rm(mamba.memory, 0, 0, -1)
    assert binding.llama_memory_seq_pos_max(mamba.memory, 0) == -1


@pytest.mark.parametrize("name", ["recurrent", "sliding", "llama"])
def test_the_first_token_of_a_prompt_changes_what_is_written(load: Load, name: str) -> None:
    loaded = load(name)
    assert loaded.greedy(PROMPT) != loaded.greedy([PROMPT[0] + 20, *PROMPT[1:]])


def test_a_sliding_window_forgets_unless_all_of_it_is_kept(load: Load) -> None:
    first = {}
    for whole in (True, False):
        gemma = load("sliding", swa_full=whole, n_ubatch=32)
        assert binding.llama_model_n_swa(gemma.model) == WINDOW
        assert gemma.decode([100 + row % 50 for row in range(400)]) == 0
        first[whole] = binding.llama_memory_seq_pos_min(gemma.memory, 0)
    assert first[True] == 0
    assert first[False] > 0


@pytest.fixture
def open_projector() -> Iterator[Callable[[Loaded, Path], Any]]:
    """Load projectors for a model, without a word on stderr; None where one does not fit."""
    nothing = binding.llama_log_callback(lambda _level, _text, _data: None)
    vision.mtmd_helper_log_set(nothing, None)
    opened: list[Any] = []

    def open_file(llama: Loaded, path: Path) -> Any:
        params = vision.mtmd_context_params_default()
        params.use_gpu, params.warmup, params.n_threads = False, False, 1
        opened.append(vision.mtmd_init_from_file(str(path).encode(), llama.model, params))
        return opened[-1]

    yield open_file
    for projector in opened:
        vision.mtmd_free(projector)
    vision.mtmd_helper_log_set(binding.llama_log_callback(), None)


def chunks_of(projector: Any, color: tuple[int, int, int]) -> Any:
    """Return the chunks of a prompt with an image of one colour: text, image, text."""
    pixels = (ctypes.c_uint8 * (40 * 30 * 3))(*color * (40 * 30))
    bitmap = vision.mtmd_bitmap_init(40, 30, pixels)
    given = b"see <__media__> now"
    text = vision.mtmd_input_text(given, len(given), True, True)
    chunks = vision.mtmd_input_chunks_init()
    bitmaps = (vision.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert vision.mtmd_tokenize(projector, chunks, ctypes.byref(text), bitmaps, 1) == 0
    vision.mtmd_bitmap_free(bitmap)
    return chunks


def logits_after(llama: Loaded, projector: Any, color: tuple[int, int, int]) -> Floats:
    """Return the logits after a prompt with an image of one colour."""
    chunks = chunks_of(projector, color)
    binding.llama_memory_clear(llama.memory, True)
    end = binding.llama_pos()
    code = vision.mtmd_helper_eval_chunks(projector, llama.context, chunks, 0, 0, CONTEXT, True, ctypes.byref(end))
    assert (code, end.value) == (0, vision.mtmd_helper_get_n_pos(chunks))
    vision.mtmd_input_chunks_free(chunks)
    return llama.logits()


def test_different_images_give_different_logits(load: Load, open_projector: Any, files: dict[str, Path]) -> None:
    llama = load("llama")
    projector = open_projector(llama, files["projector"])
    red, blue, again = (logits_after(llama, projector, color) for color in ((255, 0, 0), (0, 0, 255), (255, 0, 0)))
    assert np.abs(red - blue).max() > 0.1
    assert np.array_equal(red, again)


def test_an_image_is_a_chunk_of_declared_size(load: Load, open_projector: Any, files: dict[str, Path]) -> None:
    chunks = chunks_of(open_projector(load("llama"), files["projector"]), (1, 2, 3))
    assert vision.mtmd_input_chunks_size(chunks) == 3
    parts = [vision.mtmd_input_chunks_get(chunks, row) for row in range(3)]
    text, image = vision.MTMD_INPUT_CHUNK_TYPE_TEXT, vision.MTMD_INPUT_CHUNK_TYPE_IMAGE
    assert [vision.mtmd_input_chunk_get_type(part) for part in parts] == [text, image, text]
    assert vision.mtmd_input_chunk_get_n_tokens(parts[1]) == IMAGE_TOKENS
    vision.mtmd_input_chunks_free(chunks)


def test_a_projector_fits_only_its_own_width(load: Load, open_projector: Any, tmp_path: Path) -> None:
    generate_projector(tmp_path / "wide.gguf", "135m")
    assert not open_projector(load("llama"), tmp_path / "wide.gguf")
