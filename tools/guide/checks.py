"""The questions for a trained guide model, in all their forms."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tools.guide.corpus import Corpus, Entry
from tools.guide.decoding import Completion, Decoder

REQUIRED = ("conversation", "bare prompt")
LONG_CHAT_TOKENS = 3000

Message = dict[str, str]


@dataclass(frozen=True)
class Case:
    """One prompt with the answer that it must get; `main` for an entry's main phrasing."""

    mode: str
    main: bool
    question: str
    prompt: list[int]
    answer: str

    def is_right(self, completion: Completion) -> bool:
        """Word for word, and ended by the model itself."""
        return completion.ended and completion.text.lstrip() == self.answer


class Cases:
    """Builds the cases of a corpus with a model's own tokenizer and chat template."""

    def __init__(self, corpus: Corpus, decoder: Decoder, seed: int = 0) -> None:
        self._corpus = corpus
        self._decoder = decoder
        self._rng = random.Random(seed)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(decoder.template())

    def all(self) -> list[Case]:
        """Every case, grouped by mode."""
        cases = [*self._phrasings(), *self._unseen(), *self._long_chats()]
        return sorted(cases, key=lambda case: case.mode)

    def _phrasings(self) -> Iterator[Case]:
        """Each phrasing plainly, casually written, below a system message and after another question."""
        for entry in self._corpus.all_entries():
            fallback = entry is self._corpus.fallback
            for index, question in enumerate(entry.phrasings):
                main = index == 0 or fallback
                asked = [{"role": "user", "content": question}]
                casual = (question[0].lower() + question[1:]).rstrip("?!.")
                system = {"role": "system", "content": self._rng.choice(self._corpus.systems)}
                forms = {
                    "conversation": self._chat(asked),
                    "bare prompt": self._bare(question),
                    "casual conversation": self._chat([{"role": "user", "content": casual}]),
                    "casual bare prompt": self._bare(casual),
                    "with system message": self._chat([system, *asked]),
                    "second question": self._chat([*self._exchange(), *asked]),
                    "fourth question": self._chat([*(m for _ in range(3) for m in self._exchange()), *asked]),
                }
                for mode, prompt in forms.items():
                    yield Case(mode, main, question, prompt, entry.answer)

    def _unseen(self) -> Iterator[Case]:
        for question in self._corpus.unseen:
            prompt = self._chat([{"role": "user", "content": question}])
            yield Case("unseen, off topic", False, question, prompt, self._corpus.fallback.answer)

    def _long_chats(self) -> Iterator[Case]:
        """Each long answer's main phrasing at the end of a conversation that nearly fills the context."""
        for entry in (entry for entry in self._corpus.entries if entry.long):
            messages: list[Message] = []
            asked = [{"role": "user", "content": entry.phrasings[0]}]
            while len(prompt := self._chat([*messages, *asked])) < LONG_CHAT_TOKENS:
                messages += self._exchange()
            yield Case("at the end of 3000 tokens", False, entry.phrasings[0], prompt, entry.answer)

    def _exchange(self) -> list[Message]:
        """A random question and its answer."""
        entry: Entry = self._rng.choice(self._corpus.entries)
        question = self._rng.choice(entry.phrasings)
        return [{"role": "user", "content": question}, {"role": "assistant", "content": entry.answer}]

    def _chat(self, messages: list[Message]) -> list[int]:
        text = self._template.render(
            messages=messages, add_generation_prompt=True, bos_token=self._decoder.begin_text()
        )
        return self._decoder.tokenize(text, add_special=False, parse_special=True)

    def _bare(self, question: str) -> list[int]:
        return self._decoder.tokenize(question, add_special=True, parse_special=False)
