"""OpenAI's transcriptions of sounds: a form with a file becomes a question with a fixed instruction."""

import base64
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.common import Caller, as_sent, caller_params, given, own_params
from car_http.dialects.job import Job, Writer
from car_http.problems import bad
from car_protocol.answer import Usage
from car_protocol.meta import note
from car_protocol.sampling import Temperature

FILE = "file"
TEXT = "text"
_FORMATS = ("json", TEXT)
_ASKED = "Transcribe this recording. Write only the words that are spoken, in the language in which they are spoken."


class TranscriptionRequest(Struct, kw_only=True):
    """The parts of the form; parts that it does not name are dropped."""

    model: str | None = None
    language: Annotated[str | None, note("of the recording, as `en`")] = None
    prompt: Annotated[str | None, note("words that help to understand the recording")] = None
    response_format: Annotated[str | None, note("json or text")] = None
    temperature: Temperature | None = None
    stream: bool | None = None
    user: str | None = None


def read(request: TranscriptionRequest, caller: Caller, files: Mapping[str, bytes]) -> Job:
    """Translate a request; raises Problem."""
    if (sound := files.get(FILE)) is None:
        raise bad(FILE, "the form has no such part: send a WAV or an MP3")
    if (kind := request.response_format or "json") not in _FORMATS:
        raise bad("response_format", f"give {' or '.join(_FORMATS)}: the models of this machine tell no times of words")
    if request.stream and kind == TEXT:
        raise bad("response_format", "a stream has events of JSON: leave it out")
    asked = _ASKED + (f" It is in the language `{request.language}`." if request.language else "")
    asked += f" It may have these words in it: {request.prompt}" if request.prompt else ""
    content = [
        {"type": "audio", "data": base64.b64encode(sound).decode()},
        {"type": "text", "text": asked},
    ]
    params: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "reasoning": "off"}
    params |= given(model=request.model or None) | {"temperature": request.temperature or 0}
    params |= caller_params(caller, user=request.user, session=None, stream=bool(request.stream))
    writer = TranscriptionWriter(text=kind == TEXT)
    return Job(
        params | own_params(caller, None),
        bool(request.stream),
        writer,
        as_sent(request, {}, caller) | {"messages": FILE},
    )


class TranscriptionWriter(Writer):
    """The answer as a transcription, whole or in events."""

    def __init__(self, *, text: bool) -> None:
        self._as_text = text
        self._written: list[str] = []

    def alive(self) -> bytes:
        """Return a piece without a text."""
        return _delta("")

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text."""
        self._written.append(chunk.text)
        return _delta(chunk.text) if chunk.text else b""

    def end(self, answer: Answer) -> bytes:
        """Return the whole text again, with the usage, as OpenAI's servers do."""
        text = "".join(self._written).strip()
        return sse.data({"type": "transcript.text.done", "text": text, "usage": _usage(answer.usage)})

    def whole(self, answer: Answer) -> bytes:
        """Return the transcription, or its text alone."""
        text = answer.text.strip()
        return f"{text}\n".encode() if self._as_text else sse.encode({"text": text, "usage": _usage(answer.usage)})


def _delta(text: str) -> bytes:
    return sse.data({"type": "transcript.text.delta", "delta": text})


def _usage(usage: Usage) -> dict[str, Any]:
    total = usage.prompt_tokens + usage.completion_tokens
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
