"""Tokens under grammars: in turn and within a budget, so that other streams continue."""

from dataclasses import dataclass

import pytest

from car_engine.batching.sequences import Phase, Sequence
from car_engine.runner.stepper import SamplingTurns
from tests.engine.fakes import FakeContext, FakeSampler, Logits, likelihood, next_token
from tests.pace import SetClock

PROMPT = [3, 4]
BUDGET_S = 0.005


class SlowSampler(FakeSampler):
    """A sampler whose grammar takes `seconds` a token; it keeps the logits that it was given."""

    def __init__(self, clock: SetClock, seconds: float, allowed: list[int], logprobs: int | None = None) -> None:
        super().__init__(logprobs, allowed)
        self._clock = clock
        self._seconds = seconds
        self.seen: list[Logits] = []

    def choose(self, logits: Logits) -> int:
        """Advance the clock, then choose."""
        self._clock.now += self._seconds
        self.seen.append(logits)
        return super().choose(logits)


@dataclass
class Table:
    """Sequences that decoded one step together, each with a sampler."""

    sampling: SamplingTurns
    context: FakeContext
    sequences: list[Sequence]
    clock: SetClock

    def sample(self) -> list[int | None]:
        """Return the token of every row of a decode; None if it has to wait."""
        taken = []
        for row, sequence in enumerate(self.sequences):
            sampled = self.sampling.sample(sequence, row)
            taken.append(None if sampled is None else sampled.token)
        return taken

    def decode_again(self, number: int) -> None:
        """Let a sequence decode alone, which overwrites all logits."""
        self.context.decode([9], [len(PROMPT)], [number], [True])

    def sample_waiting(self) -> tuple[list[int], list[int]]:
        """Return the numbers of sampled and of failed sequences."""
        sampled, failed = self.sampling.sample_waiting()
        return [token.sequence.number for token in sampled], [sequence.number for sequence in failed]


def table_of(*samplers: FakeSampler, clock: SetClock | None = None) -> Table:
    context = FakeContext(sequences=len(samplers))
    sequences = [Sequence(number) for number in range(len(samplers))]
    for sequence in sequences:
        sequence.start(PROMPT, order=1)
        sequence.commit(len(PROMPT))
        context.cells[sequence.number] = PROMPT[:-1]
    count = len(samplers)
    context.decode([PROMPT[-1]] * count, [1] * count, list(range(count)), [True] * count)
    clock = clock or SetClock()
    sampling = SamplingTurns(context, likelihood, clock)
    for sequence, sampler in zip(sequences, samplers, strict=True):
        sampling.join(sequence, sampler)
    return Table(sampling, context, sequences, clock)


def slow(count: int, seconds: float, *letters: list[int]) -> Table:
    """Return sequences under slow grammars."""
    clock = SetClock()
    wanted = letters or tuple([1 + number] for number in range(count))
    return table_of(*(SlowSampler(clock, seconds, allowed) for allowed in wanted), clock=clock)


def test_a_free_row_has_its_token_at_once_and_a_bound_one_waits() -> None:
    table = table_of(FakeSampler(), FakeSampler(allowed=[7]))
    assert table.sample() == [next_token(PROMPT), None]
    assert [sequence.phase for sequence in table.sequences] == [Phase.DECODE, Phase.SAMPLE]
    assert table.sample_waiting() == ([1], [])
    assert [sequence.next_token for sequence in table.sequences] == [next_token(PROMPT), 7]


def test_what_waits_keeps_its_logits_over_the_next_decode() -> None:
    clock = SetClock()
    samplers = [SlowSampler(clock, 0.01, [1, 2], logprobs=0) for _ in range(2)]
    table = table_of(*samplers, clock=clock)
    table.sample()
    table.sample_waiting()
    table.decode_again(0)
    assert table.sample_waiting() == ([1], [])
    (logits,) = samplers[1].seen
    assert (len(logits.history), logits.copied) == (2, True)


def test_turns_end_when_the_budget_is_spent() -> None:
    table = slow(6, BUDGET_S * 0.45)
    table.sample()
    assert table.sample_waiting() == ([0, 1, 2], [])
    assert table.sample_waiting() == ([3, 4, 5], [])
    assert table.sample_waiting() == ([], [])


def test_one_token_is_sampled_however_long_it_takes_and_no_second_one() -> None:
    table = slow(3, 1.0)
    table.sample()
    for number in range(3):
        before = table.clock.now
        assert table.sample_waiting() == ([number], [])
        assert table.clock.now - before == pytest.approx(1.0)


def test_the_longest_waiting_sequence_comes_first_so_that_all_have_their_turn() -> None:
    table = slow(3, 1.0, *([1] * 9 for _ in range(3)))
    table.sample()
    turns = []
    for _ in range(6):
        (number,), _ = table.sample_waiting()
        turns.append(number)
        # The one that was served decodes on and waits again.
        table.decode_again(number)
        table.context.cut(number, len(PROMPT))
        assert table.sampling.sample(table.sequences[number], 0) is None
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_step_takes_no_more_than_the_budget_and_one_token() -> None:
    table = slow(26, 0.004)
    table.sample()
    served = 0
    while served < 26:
        before = table.clock.now
        served += len(table.sample_waiting()[0])
        assert table.clock.now - before <= BUDGET_S + 0.004


def test_a_sequence_that_left_is_not_sampled() -> None:
    table = slow(3, 0.0)
    table.sample()
    table.sampling.leave(table.sequences[1])
    table.sampling.leave(table.sequences[1])
    assert table.sample_waiting() == ([0, 2], [])


def test_a_failing_grammar_fails_only_its_sequence() -> None:
    table = slow(3, 0.0, [1], [-1], [3])
    table.sample()
    assert table.sample_waiting() == ([0, 2], [1])
    assert table.sample_waiting() == ([], []), "it does not come again"


def test_a_failing_grammar_spends_the_budget_too() -> None:
    table = slow(2, 1.0, [-1], [2])
    table.sample()
    assert table.sample_waiting() == ([], [0])
    assert table.sample_waiting() == ([1], [])


def test_log_probabilities_come_only_if_the_request_has_that_option() -> None:
    table = table_of(FakeSampler(), FakeSampler(logprobs=2), FakeSampler(allowed=[5]), FakeSampler(1, [6]))
    free = [table.sampling.sample(sequence, row) for row, sequence in enumerate(table.sequences)]
    bound, _ = table.sampling.sample_waiting()
    said = [draw.logprob for draw in [*free, *bound] if draw is not None]
    assert [None if one is None else (one.token, len(one.top)) for one in said] == [
        None,
        (next_token(PROMPT), 2),
        None,
        (6, 1),
    ]


def test_where_nothing_waits_the_clock_is_not_even_read() -> None:
    clock = SetClock(tick=0.001)
    table = table_of(FakeSampler(), clock=clock)
    table.sample()
    table.sample_waiting()
    assert clock.now == 0
