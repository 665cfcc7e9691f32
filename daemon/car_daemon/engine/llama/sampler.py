"""The sampler of one request: its chain, what binds its form, and how likely its tokens were."""

from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_daemon.engine.grammar.constraint import Constraint
from car_daemon.engine.llama.candidates import Candidates
from car_daemon.engine.llama.library import quick

Logits = NDArray[np.float32]
accept = quick("llama_sampler_accept")


class Sampler:
    """Owns a chain; under a constraint the choice is free first, and where it is refused, among what is allowed.

    `never` is None unless the chain chooses the likeliest token, of all but these.
    """

    def __init__(
        self,
        chain: Any,
        candidates: Candidates,
        constraint: Constraint | None,
        logprobs: int | None,
        never: frozenset[int] | None,
    ) -> None:
        self.chain = chain
        self.logprobs = logprobs
        self.never = never
        self._candidates = candidates
        self._constraint = constraint
        # Mutable state: whether the answer is at a place that no grammar binds.
        self.dormant = False

    @property
    def bound(self) -> bool:
        """Whether the next token has to fit a grammar, now or after a thought."""
        return self._constraint is not None

    @property
    def complete(self) -> bool:
        """Whether nothing may follow any more."""
        return self._constraint is not None and not self.dormant and self._constraint.complete

    def choose(self, logits: Logits) -> int:
        """Return and accept the next token that the constraint allows. Raises ConstraintError."""
        assert self._constraint is not None
        token = self._candidates.choose(self.chain, logits)
        if self.dormant:
            # A thought may be anything, but not the end: what the grammar asks for is still to come.
            others = self._constraint.unfinished(token)
            token = token if others is None else self._candidates.choose(self.chain, logits, others)
        elif not self._constraint.take(token):
            token = self._candidates.choose(self.chain, logits, self._constraint.allowed())
            self._constraint.take(token)
        accept(self.chain, token)
        return token

    def close(self) -> None:
        """Free the chain and all that is in it."""
        binding.llama_sampler_free(self.chain)
        self.chain = None
