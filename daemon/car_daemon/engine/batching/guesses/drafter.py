"""A draft model: a smaller one that guesses the next tokens of sequences, in a context of its own."""

from array import array
from collections.abc import Callable
from typing import Protocol

import numpy as np

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.sequence import Sequence

# Tokens that the draft computes in the decode of its first guess. More are computed before, a chunk a step, because
# all streams wait for them.
_NEAR = 16
_CHUNK = 128
# A text that the draft has to compute first costs a guess this part of it: about so many tokens follow.
_SPREAD = 64


class DraftContext(Protocol):
    """The context of a draft model, with as many sequences as that of its model."""

    context_tokens: int
    batch_tokens: int

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        """Decode one batch of rows; return 0 on success, otherwise llama.cpp's code."""
        ...

    def likeliest(self, row: int) -> int:
        """Return the most probable token after an output row of the last decode."""
        ...

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on."""
        ...


class DraftFailed(Exception):
    """A decode of the draft model failed, though its sequences had room."""


class _Cells:
    """The cells of one sequence in the draft's context."""

    def __init__(self) -> None:
        self.tokens = array("i")  # of the cells, as far as they may be used
        self.held = 0  # cells in the context
        self._agreed = 0  # of the tokens, those that are known to be in the text
        self._text: PromptLookup | None = None  # of the request that the cells follow
        self._namespace: str | None = None  # of this request: its cells are for requests of the same one only

    def follow(self, sequence: Sequence) -> int:
        """Keep the tokens that the request of a sequence begins with; return how many of its text are missing.

        The last token of the text is always missing, because its logits are not kept.
        """
        text, namespace = sequence.lookup, None if sequence.prefix is None else sequence.prefix.namespace
        assert text is not None
        if text is not self._text:
            if namespace is None or namespace != self._namespace:
                del self.tokens[:]
            self._text, self._namespace, self._agreed = text, namespace, 0
        end = min(len(self.tokens), len(text.tokens) - 1)
        ours, theirs = (np.array(tokens[self._agreed : end]) for tokens in (self.tokens, text.tokens))
        different = np.flatnonzero(ours != theirs)
        self._agreed = self._agreed + int(different[0]) if len(different) else end
        del self.tokens[self._agreed :]
        return len(text.tokens) - self._agreed


class Drafter:
    """Follows the texts of sequences with a draft model, and guesses what comes next."""

    def __init__(self, context: DraftContext, costs: StepCosts, sequences: int, clock: Callable[[], float]) -> None:
        self._context = context
        self._costs = costs
        self._clock = clock
        self._cells = [_Cells() for _ in range(sequences)]
        self.context_tokens = context.context_tokens

    def __repr__(self) -> str:
        return f"<Drafter {[each.held for each in self._cells]}>"

    def is_near(self, sequences: list[Sequence]) -> bool:
        """Return whether the draft has computed all but the last tokens of these sequences."""
        return max(map(self._missing, sequences)) <= _NEAR

    def cost(self, sequences: list[Sequence]) -> Callable[[int], float]:
        """Return the expected seconds of a guess for each sequence, by the number of its tokens."""
        missing = [self._missing(each) for each in sequences]
        before = sum(self._costs.prompt(0, each) for each in missing if each > _NEAR) / _SPREAD
        first = before + self._costs.decode.estimate(sum(min(each, _NEAR) for each in missing))
        further = self._costs.decode.estimate(len(sequences))
        return lambda length: first + (length - 1) * further if length else 0.0

    def guess(self, sequences: list[Sequence], length: int) -> None:
        """Set the guesses of sequences, or compute a part of the text of one that is far behind.

        Raises DraftFailed.
        """
        missing = [self._missing(each) for each in sequences]
        for sequence, count in zip(sequences, missing, strict=True):
            if count > _NEAR:
                self._compute_far(sequence, min(count - 1, _CHUNK, self._context.batch_tokens))
                return
        counts = missing
        for _ in range(length):
            self._compute_next(sequences, counts)
            counts = [1] * len(sequences)

    def _missing(self, sequence: Sequence) -> int:
        return self._cells[sequence.number].follow(sequence)

    def _compute_far(self, sequence: Sequence, count: int) -> None:
        """Compute a part of a text."""
        started, depth = self._clock(), len(self._cells[sequence.number].tokens)
        self._decode([sequence], [count], output=False)
        self._costs.prefill.observe(count, self._clock() - started, depth)

    def _compute_next(self, sequences: list[Sequence], counts: list[int]) -> None:
        """Compute the last tokens of texts with their guesses so far, and add a guess to each."""
        started = self._clock()
        self._decode(sequences, counts, output=True)
        row = -1
        for sequence, count in zip(sequences, counts, strict=True):
            row += count
            sequence.guess.append(self._context.likeliest(row))
        self._costs.decode.observe(sum(counts), self._clock() - started)

    def _decode(self, sequences: list[Sequence], counts: list[int], *, output: bool) -> None:
        """Decode the next tokens of sequences; with `output` the last row of each has logits."""
        tokens, positions, numbers, outputs = list[int](), list[int](), list[int](), list[bool]()
        for sequence, count in zip(sequences, counts, strict=True):
            begin, new = self._next(sequence, count)
            tokens += new
            positions += range(begin, begin + count)
            numbers += [sequence.number] * count
            outputs += [*[False] * (count - 1), output]
        code = self._context.decode(tokens, positions, numbers, outputs)
        if code:
            raise DraftFailed(f"llama_decode of the draft model returned {code} for {len(sequences)} sequences")

    def _next(self, sequence: Sequence, count: int) -> tuple[int, list[int]]:
        """Return the next tokens of a text with its guess, and their place; they become the last of the cells."""
        assert sequence.lookup is not None
        cells, text = self._cells[sequence.number], sequence.lookup.tokens
        begin = len(cells.tokens)
        if cells.held > begin:
            self._context.cut(sequence.number, begin)
        guessed = sequence.guess[max(0, begin - len(text)) :]
        new = [*text[begin : begin + count], *guessed][:count]
        cells.tokens.extend(new)
        cells.held = begin + count
        return begin, new
