"""One step on the ledger: nothing changes before a decode returned 0, and only failed sequences are lost."""

from collections.abc import Callable

import pytest

from car_base.ipc.types import AdapterSet
from car_engine.batching.costs import StepCosts
from car_engine.batching.decode import DecodeBatch
from car_engine.batching.planner import Step
from car_engine.batching.prefill import PromptChunk
from car_engine.batching.sequences import Sequence
from car_engine.runner.stepper import DecodeFailed, SampledToken, SamplingTurns, Stepper
from tests.engine.fakes import FakeContext, FakeSampler, WouldAbort, label_figures, likelihood, next_token
from tests.pace import SetClock

PROMPT = [3, 4, 5]


def stepper_on(
    context: FakeContext,
    costs: StepCosts | None = None,
    clock: SetClock | None = None,
    adapt: Callable[[AdapterSet], None] = lambda _: None,
) -> Stepper:
    clock = clock or SetClock(tick=0.001)
    sampling = SamplingTurns(context, likelihood, clock)
    for number in range(len(context.cells)):
        sampling.join(Sequence(number), FakeSampler())
    return Stepper(context, costs or StepCosts(), sampling, label_figures, adapt, clock)


def prefilling(number: int, prompt: list[int] | None = None) -> Sequence:
    sequence = Sequence(number)
    sequence.start(prompt or PROMPT, order=1)
    return sequence


def decoding(context: FakeContext, *numbers: int, prompt: list[int] | None = None) -> list[Sequence]:
    """Return sequences with cells in the ledger, each with a sampled token."""
    sequences = [prefilling(number, prompt) for number in numbers]
    for sequence in sequences:
        context.cells[sequence.number] = list(sequence.prompt)
        sequence.commit(sequence.remaining)
        sequence.accept(9)
    return sequences


def whole(*sequences: Sequence) -> list[PromptChunk]:
    return [PromptChunk(sequence, sequence.remaining) for sequence in sequences]


def test_a_finished_prompt_is_committed_and_has_its_first_token() -> None:
    context = FakeContext()
    sequence = prefilling(1)
    outcome = stepper_on(context).execute(Step([], whole(sequence)))
    assert context.cells[1] == PROMPT
    assert (sequence.cells, sequence.next_token) == (3, next_token(PROMPT))
    assert outcome.sampled == [SampledToken(sequence, next_token(PROMPT), None)]


def test_only_the_last_row_of_a_finished_prompt_has_logits() -> None:
    context = FakeContext()
    stepper_on(context).execute(Step([], whole(prefilling(0), prefilling(1))))
    assert context.batches[0].outputs == [False, False, True] * 2


def test_a_part_of_a_prompt_is_committed_without_a_token() -> None:
    context = FakeContext()
    sequence = prefilling(0)
    outcome = stepper_on(context).execute(Step([], [PromptChunk(sequence, 2)]))
    assert (sequence.cells, sequence.next_token, outcome.sampled) == (2, None, [])
    assert context.batches[0].outputs == [False, False]


def test_prompts_that_share_a_batch_have_each_their_own_token() -> None:
    context = FakeContext()
    prompts = [[3, 4], [5, 6], [7, 8]]
    sequences = [prefilling(number, prompt) for number, prompt in enumerate(prompts)]
    stepper_on(context).execute(Step([], whole(*sequences)))
    assert [sequence.next_token for sequence in sequences] == [next_token(prompt) for prompt in prompts]


def test_every_decoder_commits_its_token_and_samples_the_next() -> None:
    context = FakeContext()
    sequences = decoding(context, 0, 2)
    stepper_on(context).execute(Step([DecodeBatch(sequences, [])], []))
    for sequence in sequences:
        assert context.cells[sequence.number] == [*PROMPT, 9]
        assert (sequence.cells, sequence.next_token) == (4, next_token([*PROMPT, 9]))


def test_padding_fills_the_hole_and_leaves_no_trace() -> None:
    context = FakeContext()
    sequences = decoding(context, 0, 2)
    context.cells[1] = [8, 8]
    stepper_on(context).execute(Step([DecodeBatch(sequences, [1])], []))
    assert context.batches[0].numbers == [0, 1, 2]
    assert context.batches[0].positions == [3, 2, 3]
    assert context.batches[0].outputs == [True, False, True]
    assert context.cells[1] == [8, 8]


def test_decoders_and_prompts_go_in_batches_of_their_own() -> None:
    context = FakeContext()
    stepper_on(context).execute(Step([DecodeBatch(decoding(context, 0), [])], whole(prefilling(1))))
    assert [batch.numbers for batch in context.batches] == [[0], [1, 1, 1]]


def test_a_full_sequence_is_lost_alone() -> None:
    context = FakeContext(context_tokens=4)
    full = decoding(context, 0, prompt=[3, 4, 5, 6])
    others = decoding(context, 1, 2)
    outcome = stepper_on(context).execute(Step([DecodeBatch(full + others, [])], []))
    assert outcome.lost == full
    assert outcome.sampled == []
    assert [sequence.cells for sequence in others] == [3, 3]


@pytest.mark.parametrize("code", [-1, 1])
def test_only_a_sequence_whose_positions_disagree_is_lost(code: int) -> None:
    context = FakeContext(codes={0: code})
    sequences = decoding(context, 0, 1)
    context.cells[1].pop()
    assert stepper_on(context).execute(Step([DecodeBatch(sequences, [])], [])).lost == [sequences[1]]
    assert [sequence.cells for sequence in sequences] == [3, 3]


@pytest.mark.parametrize("code", [2, -3])
def test_after_a_decode_that_was_done_in_part_what_was_done_is_lost(code: int) -> None:
    context = FakeContext(codes={0: code})
    sequences = decoding(context, 0, 1)
    assert stepper_on(context).execute(Step([DecodeBatch(sequences, [])], [])).lost == [sequences[0]]
    assert sequences[1].next_token == 9


@pytest.mark.parametrize("code", [2, -3])
def test_padding_leaves_no_trace_of_a_decode_that_was_done_in_part(code: int) -> None:
    context = FakeContext(codes={0: code})
    sequences = decoding(context, 0, 2, 3)
    context.cells[1] = [8, 8]
    stepper_on(context).execute(Step([DecodeBatch(sequences, [1])], []))
    assert context.cells[1] == [8, 8]


@pytest.mark.parametrize("code", [-1, 1])
def test_a_failure_that_no_sequence_explains_is_an_error(code: int) -> None:
    context = FakeContext(codes={0: code})
    with pytest.raises(DecodeFailed, match=f"returned {code} for 1 sequences"):
        stepper_on(context).execute(Step([DecodeBatch(decoding(context, 0), [])], []))


def test_a_failed_prompt_loses_its_sequence_and_no_other() -> None:
    context = FakeContext(codes={1: -3})
    decoder, prompt = decoding(context, 0)[0], prefilling(1)
    outcome = stepper_on(context).execute(Step([DecodeBatch([decoder], [])], whole(prompt)))
    assert outcome.lost == [prompt]
    assert [token.sequence for token in outcome.sampled] == [decoder]
    assert outcome.prefilled == []


def test_the_ledger_itself_refuses_what_would_abort() -> None:
    context = FakeContext(sequences=1, batch_tokens=2)
    context.decode([1], [0], [0], [False])
    with pytest.raises(WouldAbort, match="no logits"):
        context.sample(object(), 0)
    with pytest.raises(WouldAbort, match="gap"):
        context.decode([1], [5], [0], [True])
    with pytest.raises(WouldAbort, match="no sequence 1"):
        context.cut(1, 0)
    with pytest.raises(WouldAbort, match="3 rows"):
        context.decode([1] * 3, [1, 2, 3], [0] * 3, [False] * 3)


def test_costs_are_learned_from_steps() -> None:
    costs = StepCosts({2: 1.0}, {3: 1.0})
    context = FakeContext()
    clock = SetClock(tick=0.5)
    stepper = stepper_on(context, costs, clock)
    stepper.execute(Step([DecodeBatch(decoding(context, 0, 1), [])], whole(prefilling(2))))
    # Each takes a second and a half: the clock is read after the rows are filled in, after the decode, after sampling.
    assert 1.0 < costs.decode(2) < 1.5
    assert 1.0 < costs.prefill(3) < 2.0
    counts = {"decode_steps": 1, "decode_tokens": 2, "prefill_tokens": 3}
    assert stepper.counters == counts | dict.fromkeys(("lookup_tried", "lookup_right"), 0)
    assert {phase: seconds for phase, seconds in stepper.phases.seconds.items() if seconds} == {
        "fill": 1.0,
        "decode": 0.5,
        "prefill": 0.5,
        "sample": 1.0,
    }


def test_adapters_change_before_a_step_with_others_and_count_as_planning() -> None:
    adapted: list[AdapterSet] = []
    context, costs, one = FakeContext(), StepCosts({1: 1.5}), (("one", 1.0),)
    stepper = stepper_on(context, costs, SetClock(tick=0.5), adapted.append)
    for number, adapters in enumerate(((), one, one, ())):
        stepper.execute(Step([DecodeBatch(decoding(context, number), [])], [], adapters))
    assert adapted == [one, ()]
    assert stepper.phases.seconds["plan"] == 1.0
    assert costs.decode(1) == pytest.approx(1.5)


def test_the_time_of_a_decode_with_holes_is_not_learned() -> None:
    costs, context = StepCosts(), FakeContext()
    before = costs.decode(2)
    stepper_on(context, costs).execute(Step([DecodeBatch(decoding(context, 0, 2), [])], []))
    assert costs.decode(2) == before


def test_the_time_of_a_decode_with_guesses_of_neighbours_is_learned() -> None:
    costs, context = StepCosts({1: 1.0, 4: 1.0}), FakeContext()
    batch = DecodeBatch(decoding(context, 0, 1), [])
    batch.let_guess(1)
    stepper_on(context, costs, SetClock(tick=0.5)).execute(Step([batch], []))
    assert costs.decode(4) > 1.0


def test_a_batch_of_chunks_is_learned_at_its_mean_depth() -> None:
    costs, context = StepCosts(prefill={8: 1.0, 16: 2.0}), FakeContext(context_tokens=4096)
    deep, shallow = prefilling(1, [7] * 2008), prefilling(0, [7] * 8)
    context.cells[1] = [7] * 2000
    deep.commit(2000)
    clock = SetClock(tick=2.0)
    stepper = stepper_on(context, costs, clock)
    stepper.execute(Step([], whole(shallow, deep)))
    # Six seconds for sixteen tokens, two of them expected at the start of a prompt: counted as four at most.
    assert costs.prefill(8, 1000) == pytest.approx(1.0 + 8 * 0.125)


@pytest.mark.parametrize("copying", [False, True])
def test_the_time_of_a_step_that_also_copies_cells_is_not_learned(*, copying: bool) -> None:
    context, costs = FakeContext(), StepCosts(decode={1: 7.0}, prefill={3: 7.0})
    stepper = stepper_on(context, costs)
    for step in (Step([DecodeBatch(decoding(context, 0), [])], []), Step([], whole(prefilling(1)))):
        context.copying = copying
        stepper.execute(step)
    learned = costs.decode(1) < 7, costs.prefill(3) < 7
    assert learned == (not copying, not copying)
