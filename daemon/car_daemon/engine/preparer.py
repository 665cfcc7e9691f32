"""The tokenizer thread: prompts into tokens, and whether they fit, before a request may wait for a lease."""

from array import array
from collections.abc import Callable
from typing import Protocol

from car_daemon.engine.frames import (
    Detokenize,
    FromEngine,
    PlainText,
    Prepare,
    Prepared,
    Refused,
    TokenIds,
    Tokenize,
)
from car_daemon.engine.inbox import Inbox
from car_protocol.infer import Message

Job = Prepare | Tokenize | Detokenize
_DEFAULT_MAX_TOKENS = 256


class Tokenizer(Protocol):
    """What preparing needs to know about a model's text."""

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        ...

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Cut text into tokens."""
        ...

    def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Write tokens out."""
        ...


class Refusal(Exception):
    """Why a request cannot run: a reason of the error table and its data."""

    def __init__(self, reason: str, **data: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data


class Preparer:
    """Answers Prepare, Tokenize and Detokenize; `render` is None where the model has no chat template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        render: Callable[[list[Message]], list[int]] | None,
        context_tokens: int,
        inbox: Inbox[Job | None],
        send: Callable[[FromEngine], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self._context_tokens = context_tokens
        self._inbox = inbox
        self._send = send

    def run(self) -> None:
        """Work until None comes."""
        while True:
            for job in self._inbox.take(wait=True):
                if job is None:
                    return
                self._send(self.answer(job))

    def answer(self, job: Job) -> FromEngine:
        """Do one job; what cannot be done is answered with Refused."""
        try:
            match job:
                case Prepare():
                    return self._prepare(job)
                case Tokenize():
                    return self._tokenize(job)
                case Detokenize():
                    self._check_vocabulary(job.tokens)
                    return PlainText(job.key, self._tokenizer.detokenize(job.tokens, special=job.special))
        except Refusal as refusal:
            return Refused(job.key, refusal.reason, refusal.data)
        except Exception:  # noqa: BLE001 - one prompt must not end the engine under all others
            return Refused(job.key, "internal_error", {})

    def _prepare(self, job: Prepare) -> Prepared:
        tokens = self._prompt_tokens(job)
        room = self._context_tokens - len(tokens)
        if room < (job.max_tokens or 1):
            raise self._too_long(len(tokens), job.max_tokens)
        max_tokens = job.max_tokens or min(_DEFAULT_MAX_TOKENS, room)
        return Prepared(job.key, array("i", tokens).tobytes(), max_tokens)

    def _prompt_tokens(self, job: Prepare) -> list[int]:
        if job.tokens is not None:
            self._check_vocabulary(job.tokens)
            return job.tokens
        if job.messages is not None:
            return self._conversation(job.messages, job.max_tokens)
        text = job.prompt or ""
        self._check_bytes(len(text.encode()), job.max_tokens)
        tokens = self._tokenizer.tokenize(text, add_special=True, parse_special=job.parse_special)
        if not tokens:
            raise Refusal("invalid_params", param="prompt")
        return tokens

    def _conversation(self, messages: list[Message], max_tokens: int | None) -> list[int]:
        if self._render is None:
            raise Refusal("model_unavailable", lacks="chat_template")
        self._check_bytes(sum(len(message.text.encode()) for message in messages), max_tokens)
        tokens = self._render(messages)
        if not tokens:
            raise Refusal("invalid_params", param="messages")
        return tokens

    def _tokenize(self, job: Tokenize) -> TokenIds:
        self._check_bytes(len(job.text.encode()), None)
        tokens = self._tokenizer.tokenize(job.text, add_special=job.add_special, parse_special=job.parse_special)
        return TokenIds(job.key, tokens)

    def _check_bytes(self, size: int, max_tokens: int | None) -> None:
        """Refuse text that fits under no tokenization: tokenizing megabytes takes stack and seconds."""
        if size > self._context_tokens * self._tokenizer.longest_piece:
            raise self._too_long(None, max_tokens)

    def _check_vocabulary(self, tokens: list[int]) -> None:
        if any(token >= self._tokenizer.size for token in tokens):
            raise Refusal("invalid_params", param="tokens")

    def _too_long(self, prompt_tokens: int | None, max_tokens: int | None) -> Refusal:
        return Refusal(
            "context_exceeded",
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            context_tokens=self._context_tokens,
        )
