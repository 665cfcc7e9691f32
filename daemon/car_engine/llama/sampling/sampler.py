"""The sampler of one request: its chain, its grammar and the number of its log-probabilities."""

from typing import Any

from llama_cpp import llama_cpp as binding

from car_engine.grammar.constraint import Constraint
from car_engine.llama.library import quick
from car_engine.llama.sampling.candidates import Candidates
from car_engine.llama.sampling.shortlist import Logits, Shortlist

_accept = quick("llama_sampler_accept")


class Sampler:
    """Owns a chain; under a constraint it chooses freely first, and among the allowed tokens where that is refused.

    `never` are the tokens that a greedy chain excludes, None where the chain is not greedy; `shortlist` is None where
    all tokens decide.
    """

    def __init__(
        self,
        chain: Any,
        candidates: Candidates,
        constraint: Constraint | None,
        logprobs: int | None,
        never: frozenset[int] | None,
        shortlist: Shortlist | None,
    ) -> None:
        self.chain = chain
        self.logprobs = logprobs
        self.never = never
        self.shortlist = shortlist
        self._candidates = candidates
        self._constraint = constraint
        self.bound = constraint is not None  # whether a grammar binds the answer, perhaps after a thought
        self.unconstrained = False  # inside a thought, which no grammar binds

    @property
    def complete(self) -> bool:
        """True if the grammar allows no further token."""
        return self._constraint is not None and not self.unconstrained and self._constraint.complete

    def short_way(self, logits: Logits) -> int | None:
        """Return and accept the next token, without constraint; None where all tokens have to be looked at."""
        token = self._short_choice(logits)
        if token is not None and self.never is None:
            self.accept(token)
        return token

    def accept(self, token: int) -> None:
        """Count a token of the text, for what follows."""
        _accept(self.chain, token)
        self.accepted(token)

    def accepted(self, token: int) -> None:
        """Count a token that llama.cpp counted itself."""
        if self.shortlist is not None:
            self.shortlist.remember(token)

    def choose(self, logits: Logits) -> int:
        """Return and accept the next token that the constraint allows. Raises ConstraintError."""
        assert self._constraint is not None
        token = self._free_choice(logits)
        if self.unconstrained:
            # A thought may be any text but not the end: the text that the grammar requires is still to come.
            others = self._constraint.unfinished(token)
            token = token if others is None else self._candidates.choose(self.chain, logits, others)
        elif not self._constraint.advance(token):
            token = self._candidates.choose(self.chain, logits, self._constraint.allowed())
            self._constraint.advance(token)
        self.accept(token)
        return token

    def close(self) -> None:
        """Free the chain and its samplers."""
        binding.llama_sampler_free(self.chain)
        self.chain = None

    def _free_choice(self, logits: Logits) -> int:
        token = self._short_choice(logits)
        return self._candidates.choose(self.chain, logits) if token is None else token

    def _short_choice(self, logits: Logits) -> int | None:
        if self.never is not None:
            likeliest = int(logits.argmax())
            if likeliest not in self.never:
                return likeliest
        few = None if self.shortlist is None else self.shortlist.of(logits)
        return None if few is None else self._candidates.choose(self.chain, logits, few)
