"""The tokenizer thread: prompts into tokens, and whether they fit, before a request may wait for a lease."""

from array import array
from collections.abc import Callable, Collection
from collections.abc import Sequence as Rows
from functools import partial
from typing import NamedTuple, NoReturn, Protocol

from car_daemon.engine.form import Forms
from car_daemon.engine.frames import (
    Chat,
    Detokenize,
    FromEngine,
    ImageSlot,
    PlainText,
    Prepare,
    Prepared,
    PrepareTexts,
    Reading,
    Refused,
    TokenIds,
    Tokenize,
)
from car_daemon.engine.images import Size
from car_daemon.engine.inbox import Forgotten, Inbox
from car_daemon.engine.llama.template import Rendered
from car_daemon.engine.output.format import Format
from car_daemon.engine.refusal import Refusal
from car_daemon.engine.sight import Carried, carried
from car_daemon.engine.text_inputs import TextInputs
from car_daemon.place import named
from car_protocol.sampling import Sampling

Job = Prepare | PrepareTexts | Tokenize | Detokenize
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


class Template(Protocol):
    """A model's chat template."""

    @property
    def takes_tools(self) -> bool:
        """Whether it shows tools to the model."""
        ...

    @property
    def format(self) -> Format:
        """How the model writes thoughts and calls."""
        ...

    def render(self, chat: Chat, check: Callable[[int], None]) -> Rendered:
        """Return the conversation's tokens; raises Refusal, and what `check` raises of its bytes."""
        ...

    def render_images(self, carried: Carried, check: Callable[[int], None]) -> Rendered:
        """Return the tokens of a conversation with images; raises as `render` does."""
        ...


class _Prompt(NamedTuple):
    """A prompt as tokens, how its answer is read, and its images."""

    tokens: list[int]
    reading: Reading = Reading()
    images: Rows[ImageSlot] = ()


class Preparer:
    """Answers each Job; `warm` builds samplers' dear parts before the loop needs them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template | None,
        forms: Forms,
        warm: Callable[[Sampling], None],
        adapters: Collection[str],
        texts: TextInputs,
        count_image: Callable[[Size], int] | None,
        context_tokens: int,
        *,
        generates: bool,
        inbox: Inbox[Job],
        forgotten: Forgotten,
        send: Callable[[FromEngine], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._forms = forms
        self._warm = warm
        self._adapters = adapters
        self._text_inputs = texts
        self._count_image = count_image
        self._context_tokens = context_tokens
        self._generates = generates
        self._inbox = inbox
        self._forgotten = forgotten
        self._send = send

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self._inbox.take(wait=True))

    def turn(self, jobs: list[Job]) -> None:
        """Do the jobs that are wanted, in order."""
        for job in jobs:
            if job.key not in self._forgotten:
                self._send(self.answer(job))
        if self._inbox.empty:
            self._forgotten.clear()

    def answer(self, job: Job) -> FromEngine:
        """Do one job; what cannot be done is answered with Refused."""
        try:
            match job:
                case Prepare():
                    return self._prepare(job)
                case PrepareTexts():
                    return self._texts(job)
                case Tokenize():
                    return self._tokenize(job)
                case Detokenize():
                    self._check_vocabulary(job.tokens)
                    return PlainText(job.key, self._tokenizer.detokenize(job.tokens, special=job.special))
        except Refusal as refusal:
            return Refused(job.key, refusal.reason, refusal.data)
        except Exception as error:  # noqa: BLE001 - one prompt must not end the engine under all others
            return Refused(job.key, "internal_error", {}, fault=named(error))

    def _prepare(self, job: Prepare) -> Prepared:
        if not self._generates:
            raise Refusal("model_unavailable", lacks="generate")
        self._check_biases(job.sampling)
        if any(name not in self._adapters for name, _ in job.adapters):
            raise Refusal("model_unavailable", lacks="adapter")
        prompt = self._prompt(job)
        tokens, reading = prompt.tokens, prompt.reading
        room = self._context_tokens - len(tokens)
        if room < (job.max_tokens or 1):
            raise self._too_long(len(tokens), job.max_tokens)
        max_tokens = job.max_tokens or min(_DEFAULT_MAX_TOKENS, room)
        constraint = self._forms.of(job, reading)
        self._warm(job.sampling)
        packed = array("i", tokens).tobytes()
        return Prepared(job.key, packed, max_tokens, constraint, reading, images=list(prompt.images))

    def _texts(self, job: PrepareTexts) -> Prepared:
        inputs = self._text_inputs.of(job)
        tokens = array("i", [token for each in inputs for token in each])
        return Prepared(job.key, tokens.tobytes(), 1, lengths=[len(each) for each in inputs])

    def _prompt(self, job: Prepare) -> _Prompt:
        if job.tokens is not None:
            self._check_vocabulary(job.tokens)
            return _Prompt(job.tokens)
        if job.chat is not None:
            return self._conversation(job.chat, job.max_tokens)
        text = job.prompt or ""
        self._check_bytes(len(text.encode()), job.max_tokens)
        tokens = self._tokenizer.tokenize(text, add_special=True, parse_special=job.parse_special)
        if not tokens:
            raise Refusal("invalid_params", param="prompt")
        return _Prompt(tokens)

    def _conversation(self, chat: Chat, max_tokens: int | None) -> _Prompt:
        template = self._template
        if template is None:
            raise Refusal("model_unavailable", lacks="chat_template")
        if chat.tools and not template.takes_tools:
            raise Refusal("model_unavailable", lacks="tools")
        check = partial(self._check_bytes, max_tokens=max_tokens)
        check(_size(chat))
        sees = any(message.images for message in chat.messages)
        rendered, images = self._seen(chat, template, max_tokens) if sees else (template.render(chat, check), [])
        if not rendered.tokens:
            raise Refusal("invalid_params", param="messages")
        return _Prompt(rendered.tokens, _reading(chat, template.format, inside=rendered.inside), images)

    def _seen(self, chat: Chat, template: Template, max_tokens: int | None) -> tuple[Rendered, list[ImageSlot]]:
        if self._count_image is None:
            raise Refusal("model_unavailable", lacks="images")
        # What nearly fits is counted to its end, so that the refusal can say how long it is.
        taken = carried(chat, self._count_image, 2 * self._context_tokens)
        if taken is None:
            raise self._too_long(None, max_tokens)
        rendered = template.render_images(taken, partial(self._check_bytes, max_tokens=max_tokens))
        places = zip(rendered.starts, taken.placeholders, taken.files, strict=True)
        images = [ImageSlot(start, len(placeholder), file) for start, placeholder, file in places]
        return rendered, sorted(images, key=lambda image: image.start)

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

    def _check_biases(self, sampling: Sampling) -> None:
        if any(int(token) >= self._tokenizer.size for token in sampling.logit_bias):
            raise Refusal("invalid_params", param="logit_bias")

    def _too_long(self, prompt_tokens: int | None, max_tokens: int | None) -> Refusal:
        return Refusal(
            "context_exceeded",
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            context_tokens=self._context_tokens,
        )


def _reading(chat: Chat, form: Format, *, inside: bool) -> Reading:
    tools = form.tools if chat.tools else None
    return Reading(form.thinking, inside, tools, form.markers, chat.reasoning == "keep")


def _size(chat: Chat) -> int:
    """Return the bytes of text that a template has to show at least."""
    contents = sum(len(message.text.encode()) for message in chat.messages)
    return contents + sum(len(tool.function.description.encode()) for tool in chat.tools)
