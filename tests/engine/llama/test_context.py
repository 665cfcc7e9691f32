"""Arguments that would abort the process are errors before they reach llama.cpp."""

import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.sampler import Sampler
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Sampling
from tests.engine.llama.conftest import MakeContext, chains_of, fill_weights, run_of
from tools.random_models.llama import generate

PROMPT = [5, 6, 7]


def prefill(context: LlamaContext, number: int = 0, tokens: list[int] | None = None) -> int:
    tokens = tokens or PROMPT
    count = len(tokens)
    return context.decode(tokens, list(range(count)), [number] * count, [False] * (count - 1) + [True])


def greedy(vocabulary: Vocabulary, context: LlamaContext) -> Sampler:
    return chains_of(vocabulary, context).build(run_of(Sampling(temperature=0.0)), [])


def test_cells_are_rounded_up_and_reported(make_context: MakeContext) -> None:
    assert make_context(2, 200).context_tokens == 256
    assert make_context(3, 256).context_tokens == 256


def test_a_decode_fills_the_cells_of_its_sequence(make_context: MakeContext) -> None:
    context = make_context()
    assert [context.last_position(number) for number in (0, 1)] == [-1, -1]
    assert prefill(context, 1) == 0
    assert [context.last_position(number) for number in (0, 1)] == [-1, 2]


def test_a_tail_can_be_cut_and_decoded_again(make_context: MakeContext) -> None:
    context = make_context()
    prefill(context)
    context.cut(0, 1)
    assert context.last_position(0) == 0
    assert context.decode([6, 7], [1, 2], [0, 0], [False, True]) == 0
    context.cut(0, 0)
    assert context.last_position(0) == -1


@pytest.mark.parametrize("number", [-1, 2, 256])
def test_a_sequence_out_of_range_is_an_error(make_context: MakeContext, number: int) -> None:
    context = make_context(2)
    with pytest.raises(ValueError, match="is outside"):
        context.cut(number, 0)
    with pytest.raises(ValueError, match="is outside"):
        context.last_position(number)


@pytest.mark.parametrize("rows", [0, 513])
def test_a_batch_that_is_empty_or_too_large_is_an_error(make_context: MakeContext, rows: int) -> None:
    context = make_context(2, 1024)
    with pytest.raises(ValueError, match=f"not {rows}"):
        context.decode([5] * rows, list(range(rows)), [0] * rows, [False] * rows)
    assert prefill(context, tokens=[5] * 512) == 0


def test_a_decode_batch_may_have_a_row_of_every_sequence(make_context: MakeContext) -> None:
    context = make_context(4)
    assert context.decode([5] * 4, [0] * 4, [0, 1, 2, 3], [True] * 4) == 0


@pytest.mark.parametrize(
    ("token", "position", "number"),
    [(10**6, 0, 0), (-5, 0, 0), (5, 0, 2), (5, 0, -1)],
    ids=["token too high", "token too low", "sequence too high", "sequence too low"],
)
def test_a_bad_row_is_refused_and_changes_nothing(
    make_context: MakeContext, token: int, position: int, number: int
) -> None:
    context = make_context(2)
    assert context.decode([token], [position], [number], [True]) == -1
    assert [context.last_position(one) for one in (0, 1)] == [-1, -1]
    assert prefill(context) == 0


@pytest.mark.parametrize("position", [0, 2, 4, 99])
def test_a_position_that_does_not_follow_the_last_is_refused_and_changes_nothing(
    make_context: MakeContext, position: int
) -> None:
    context = make_context()
    prefill(context)
    assert context.decode([5], [position], [0], [True]) == -1
    assert context.last_position(0) == 2


def test_a_full_sequence_refuses_the_whole_batch(make_context: MakeContext) -> None:
    context = make_context(2)
    prefill(context, tokens=[5] * 256)
    prefill(context, 1)
    assert context.decode([5, 5], [256, 3], [0, 1], [True, True]) == 1
    assert [context.last_position(number) for number in (0, 1)] == [255, 2]


def test_a_row_that_asked_for_no_logits_cannot_be_sampled(make_context: MakeContext, vocabulary: Vocabulary) -> None:
    context = make_context()
    sampler = greedy(vocabulary, context)
    prefill(context)
    for row in (0, 1, 3, -1):
        with pytest.raises(ValueError, match="no logits"):
            context.sample(sampler, row)
    assert 0 <= context.sample(sampler, 2) < vocabulary.size
    sampler.close()


def test_nothing_can_be_sampled_before_a_decode_or_after_one_that_failed(
    make_context: MakeContext, vocabulary: Vocabulary
) -> None:
    context = make_context()
    sampler = greedy(vocabulary, context)
    with pytest.raises(ValueError, match="no logits"):
        context.sample(sampler, 0)
    prefill(context)
    assert context.decode([5], [99], [0], [True]) == -1
    for row in (0, 2):
        with pytest.raises(ValueError, match="no logits"):
            context.sample(sampler, row)
    sampler.close()


def test_a_batch_that_was_refused_leaves_nothing_to_sample(make_context: MakeContext, vocabulary: Vocabulary) -> None:
    context = make_context()
    sampler = greedy(vocabulary, context)
    prefill(context)
    with pytest.raises(ValueError, match="not 0"):
        context.decode([], [], [], [])
    with pytest.raises(ValueError, match="no logits"):
        context.sample(sampler, 2)
    sampler.close()


def test_nothing_can_be_sampled_with_a_sampler_that_was_closed(
    make_context: MakeContext, vocabulary: Vocabulary
) -> None:
    context = make_context()
    sampler = greedy(vocabulary, context)
    prefill(context)
    sampler.close()
    with pytest.raises(ValueError, match="closed"):
        context.sample(sampler, 2)


def test_the_guide_model_is_cut_anywhere_and_trying_it_out_leaves_nothing(make_context: MakeContext) -> None:
    context = make_context()
    context.try_out()
    assert context.memory.cuts_anywhere
    assert context.last_position(0) == -1


@pytest.mark.parametrize("weight", [b"\xff\x7e", b"\x00\x7c"], ids=["NaN", "infinity"])
def test_a_model_whose_weights_are_no_numbers_is_refused(tmp_path: Path, weight: bytes) -> None:
    path = tmp_path / "m.gguf"
    generate(path, "tiny", "f16")
    fill_weights(path, weight)
    with (
        closing(LlamaModel(str(path), gpu_layers=0, progress=lambda _done: None)) as model,
        closing(LlamaContext(model, sequences=1, context_tokens=256, threads=1)) as context,
        pytest.raises(ModelError, match="its weights are damaged: fetch the file again"),
    ):
        context.try_out()


@pytest.mark.parametrize("target", [0, 1])
def test_a_saved_sequence_goes_on_in_any_sequence(
    make_context: MakeContext, vocabulary: Vocabulary, target: int
) -> None:
    context = make_context()
    sampler = greedy(vocabulary, context)
    prefill(context)
    context.decode([8], [3], [0], [True])
    expected = context.sample(sampler, 0)
    context.cut(0, 3)
    saved = context.save(0)
    assert len(saved) == context.saved_size(0)
    context.cut(0, 0)
    assert context.restore(target, saved)
    assert context.last_position(target) == 2
    assert context.decode([8], [3], [target], [True]) == 0
    assert context.sample(sampler, 0) == expected
    sampler.close()


def test_saving_and_restoring_a_sequence_takes_no_second_copy_of_it(make_context: MakeContext) -> None:
    context = make_context()
    prefill(context, tokens=list(range(5, 105)))
    tracemalloc.start()
    try:
        saved = context.save(0)
        _, saving = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        context.restore(1, saved)
        _, restoring = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(saved) <= saving < 1.5 * len(saved)
    assert restoring < 1.5 * len(saved)


def test_an_empty_sequence_can_be_saved_and_restored(make_context: MakeContext) -> None:
    context = make_context()
    context.restore(1, context.save(0))
    assert context.last_position(1) == -1
    assert prefill(context, 1) == 0


@pytest.mark.parametrize("number", [-1, 2])
def test_saving_and_restoring_a_sequence_out_of_range_is_an_error(make_context: MakeContext, number: int) -> None:
    context = make_context(2)
    prefill(context)
    saved = context.save(0)
    with pytest.raises(ValueError, match="is outside"):
        context.save(number)
    with pytest.raises(ValueError, match="is outside"):
        context.restore(number, saved)


def test_what_is_no_saved_sequence_is_refused_and_leaves_nothing(make_context: MakeContext) -> None:
    context = make_context()
    prefill(context)
    saved = context.save(0)
    for broken in (memoryview(b"nonsense"), saved[: len(saved) // 2]):
        assert not context.restore(1, broken)
        assert context.last_position(1) == -1
    assert prefill(context, 1) == 0
