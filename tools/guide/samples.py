"""Random training rows: conversations, bare prompts and pages, packed to a fixed length."""

import random
from dataclasses import dataclass, field

from tools.guide.corpus import Corpus, Entry
from tools.guide.tokenizer import BEGIN, DONE, END, TURN, Tokenizer

CONTEXT = 4096
FALLBACK_SHARE = 0.18
PAGE_SHARE = 0.04
BARE_SHARE = 0.5
SYSTEM_SHARE = 0.25
CASUAL_SHARE = 0.25
CUT_SHARE = 0.1
JUMP_SHARE = 0.1
TURN_WEIGHTS = (0.36, 0.2, 0.14, 0.1, 0.05, 0.05, 0.05, 0.05)  # of conversations with 1, 2, 3, ... questions
LONG_WEIGHT = 2.0


@dataclass
class Sample:
    """Tokens, whether each one is learned (predicted), and their positions, rising but with gaps."""

    tokens: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def add(self, tokens: list[int], *, learned: bool, jump: int = 0) -> None:
        """Append tokens, `jump` positions further on than the next free one."""
        start = (self.positions[-1] + 1 if self.positions else 0) + jump
        self.tokens += tokens
        self.learned += [learned] * len(tokens)
        self.positions += range(start, start + len(tokens))


class Sampler:
    """Draws samples from a corpus; only `_rng` and `_left_over` change."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, seed: int) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._weights = [LONG_WEIGHT if entry.long else 1.0 for entry in corpus.entries]
        self._begin, self._end, self._turn, self._done = (
            [tokenizer.id_of(token)] for token in (BEGIN, END, TURN, DONE)
        )
        self._newline = tokenizer.encode("\n")
        self._left_over: list[Sample] = []

    def row(self, length: int) -> list[Sample]:
        """Samples whose lengths add up to at most `length`; what does not fit comes first in the next row."""
        samples, self._left_over = self._left_over, []
        room = length - sum(len(sample.tokens) for sample in samples)
        while not self._left_over:
            sample = self.sample(length)
            if len(sample.tokens) > room:
                self._left_over = [sample]
            else:
                samples.append(sample)
                room -= len(sample.tokens)
        return samples

    def sample(self, longest: int) -> Sample:
        """One page, bare prompt or conversation of at most `longest` tokens."""
        kind = self._rng.random()
        if kind < PAGE_SHARE:
            return self._page()
        return self._bare() if kind < PAGE_SHARE + BARE_SHARE else self._conversation(longest)

    def _page(self) -> Sample:
        """One paragraph of the pages and, sometimes, what follows it."""
        paragraphs = self._corpus.pages.strip().split("\n\n")
        first = self._rng.randrange(len(paragraphs))
        sample = Sample()
        sample.add(self._begin, learned=False)
        text = "\n\n".join(paragraphs[first : first + self._rng.randint(1, 2)])
        sample.add(self._tokenizer.encode(text), learned=True)
        return sample

    def _bare(self) -> Sample:
        """A question as plain text, a newline, the answer and the end token."""
        question, answer = self._question_and_answer()
        sample = Sample()
        sample.add(self._begin + self._tokenizer.encode(question), learned=False)
        sample.add(self._newline + self._tokenizer.encode(answer) + self._end, learned=True)
        return sample

    def _conversation(self, longest: int) -> Sample:
        """A chat of one or more questions, as the chat template renders it."""
        sample = Sample()
        sample.add(self._begin, learned=False)
        if self._rng.random() < SYSTEM_SHARE:
            sample.add(self._message("system", self._rng.choice(self._corpus.systems)), learned=False)
        turns = self._rng.choices(range(1, len(TURN_WEIGHTS) + 1), TURN_WEIGHTS)[0]
        for turn in range(turns):
            question, answer = self._question_and_answer()
            asked = self._message("user", question) + self._turn + self._tokenizer.encode("assistant\n")
            answered = self._tokenizer.encode(answer)
            if len(sample.tokens) + len(asked) + len(answered) + 2 > longest:
                break
            sample.add(asked, learned=False, jump=self._jump(turns))
            self._add_answer(sample, answered, last=turn == turns - 1)
        return sample

    def _add_answer(self, sample: Sample, answer: list[int], *, last: bool) -> None:
        """The answer to learn, or sometimes an earlier one that was cut off and is not learned."""
        if not last and self._rng.random() < CUT_SHARE:
            kept = answer[: self._rng.randrange(1, len(answer))]
            sample.add(kept + self._done + self._newline, learned=False)
        else:
            sample.add(answer + self._done, learned=True)
            sample.add(self._newline, learned=False)

    def _message(self, role: str, content: str) -> list[int]:
        return self._turn + self._tokenizer.encode(f"{role}\n{content}") + self._done + self._newline

    def _jump(self, turns: int) -> int:
        """Mostly 0; else a gap before a turn, so that distances up to the whole context occur."""
        if self._rng.random() >= JUMP_SHARE:
            return 0
        return self._rng.randrange((CONTEXT - 1024) // turns)

    def _question_and_answer(self) -> tuple[str, str]:
        entry = self._entry()
        question = self._rng.choice(entry.phrasings)
        if self._rng.random() < CASUAL_SHARE:
            question = question[0].lower() + question[1:]
        if self._rng.random() < CASUAL_SHARE:
            question = question.rstrip("?!.")
        return question, entry.answer

    def _entry(self) -> Entry:
        if self._rng.random() < FALLBACK_SHARE:
            return self._corpus.fallback
        return self._rng.choices(self._corpus.entries, self._weights)[0]
