"""An engine that follows a script: it answers with the words of the prompt, over a real socket, a word a step."""

import asyncio
import os
import socket
from array import array
from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec import Struct

from car_base.ipc import frames
from car_base.ipc.codec import FrameReader, decode_to_engine, encode_frame, packed_tokens
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.link import EngineLink
from car_protocol.answer import FinishReason, Usage

SEQUENCES = 4
CONTEXT_TOKENS = 4096
_MAX_TOKENS = 64
_HEARTBEAT_S = 1.0
_TEXT_BYTES = 4  # of an int32 token


# Has a step called once: now, after a while, or when a test says so.
Pace = Callable[[Callable[[], None]], object]


def paced(seconds: float) -> Pace:
    """Return a pace of one step every so many seconds."""
    return lambda step: asyncio.get_running_loop().call_later(seconds, step)


class Answer:
    """One running or parked request: its words, and how far it is."""

    def __init__(self, run: frames.Run, sequence: int) -> None:
        text = _decoded(array("i", run.prepared.tokens)).split() or ["nothing"]
        self.key = run.key
        self.prompt_tokens = len(run.prepared.tokens) // _TEXT_BYTES
        self.words = [text[number % len(text)] for number in range(run.prepared.max_tokens)]
        self.sequence = sequence
        self.sampled = 0

    def advance(self) -> frames.RequestUpdate:
        """Return the update with the next word; the last one ends the answer."""
        word = self.words[self.sampled]
        self.sampled += 1
        end = self.end("length") if self.sampled == len(self.words) else None
        return frames.RequestUpdate(self.key, self.sequence, f"{word} ", 1, self.prompt_tokens, end=end)

    def halted(self, *, deadline: bool) -> frames.RequestUpdate:
        """Return the update that ends the answer early."""
        end = self.end("deadline" if deadline else None)
        return frames.RequestUpdate(self.key, self.sequence, "", 0, self.prompt_tokens, end=end)

    def end(self, reason: FinishReason | None) -> frames.End:
        """Return how the answer ended; its times are 0."""
        return frames.End(reason, None, Usage(self.prompt_tokens, 0, self.sampled), 0.0, 0.0)


class ScriptedEngine(asyncio.Protocol):
    """The engine's end of the socket: frames in, frames out, a step whenever `pace` calls back."""

    def __init__(self, pace: Pace, sequences: int = SEQUENCES) -> None:
        self._pace = pace
        self._sequences = sequences
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._running: dict[int, Answer] = {}
        self._parked: dict[int, Answer] = {}
        self._steps = 0
        self._is_stepping = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._actions: dict[type[Struct], Callable[[Any], None]] = {
            frames.Load: self._load,
            frames.Prepare: lambda prepare: self._send(_prepared(prepare)),
            frames.PrepareDecision: lambda decision: self._send(_refused(decision, "decisions")),
            frames.PrepareTexts: lambda texts: self._send(_refused(texts, "embed")),
            frames.Tokenize: lambda job: self._send(frames.TokenIds(job.key, packed_tokens(list(job.text.encode())))),
            frames.Detokenize: lambda job: self._send(frames.PlainText(job.key, _decoded(job.tokens))),
            frames.Run: self._begin,
            frames.Park: self._park,
            frames.Resume: self._resume,
            frames.Halt: self._halt,
            frames.Quit: lambda _: self.close(),
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop: the daemon closed its end."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._transport = None
        self._running.clear()

    def data_received(self, data: bytes) -> None:
        """Carry out the frames that came."""
        for body in self._reader.feed(data):
            self._carry_out(decode_to_engine(body))

    def _carry_out(self, frame: Struct) -> None:
        """Carry out a frame; the others, such as the number of threads, have no effect here."""
        action = self._actions.get(type(frame))
        if action is not None:
            action(frame)

    def _load(self, _: frames.Load) -> None:
        self._send(_ready(self._sequences))
        self._beat()

    def _begin(self, run: frames.Run) -> None:
        self._start(Answer(run, self._free_sequence()))

    def _start(self, answer: Answer) -> None:
        self._running[answer.key] = answer
        self._step_soon()

    def _park(self, park: frames.Park) -> None:
        if (answer := self._running.pop(park.key, None)) is not None:
            self._parked[park.key] = answer
            self._send(frames.Parked(park.key))

    def _resume(self, resume: frames.Resume) -> None:
        answer = self._parked.pop(resume.key)
        answer.sequence = self._free_sequence()
        self._start(answer)

    def _halt(self, halt: frames.Halt) -> None:
        answer = self._running.pop(halt.key, None) or self._parked.pop(halt.key, None)
        if answer is not None:
            self._send(frames.StepDone(self._steps, [answer.halted(deadline=halt.deadline)]))

    def _step_soon(self) -> None:
        if self._running and not self._is_stepping:
            self._is_stepping = True
            self._pace(self._step)

    def _step(self) -> None:
        self._is_stepping = False
        self._steps += 1
        updates = [answer.advance() for answer in self._running.values()]
        self._running = {key: each for key, each in self._running.items() if each.sampled < len(each.words)}
        if updates:
            self._send(frames.StepDone(self._steps, updates))
        self._step_soon()

    def _free_sequence(self) -> int:
        busy = {answer.sequence for answer in self._running.values()}
        return next(number for number in range(self._sequences) if number not in busy)

    def _beat(self) -> None:
        self._send(frames.Heartbeat(self._steps, 0.0, {}))
        self._heartbeat = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._beat)

    def _send(self, frame: Struct) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(frame))

    def close(self) -> None:
        """End, as a process that exits would."""
        if self._transport is not None:
            self._transport.close()


class ScriptedChild:
    """The daemon's end of a scripted engine, in place of a child process."""

    host: str | None = None
    cut = False

    def __init__(self, engine: ScriptedEngine, link: EngineLink) -> None:
        self._engine = engine
        self._link = link

    @property
    def pid(self) -> int:
        """This process: the engine lives in it."""
        return os.getpid()

    @property
    def fault(self) -> str | None:
        """The reason why the daemon ended the link; None if it did not."""
        return self._link.fault

    def send(self, message: Struct) -> None:
        """Send one frame."""
        self._link.send(message)

    def waits(self) -> dict[str, float]:
        """Return nothing: it has no thread of its own."""
        return {}

    async def wait(self) -> int:
        """Return 0 once the engine closed its end."""
        await self._link.closed.wait()
        return 0

    def kill(self) -> None:
        """End it."""
        self._engine.close()

    async def stop(self) -> None:
        """Close the link, which ends it."""
        self._link.close()
        await self._link.closed.wait()


async def launch_scripted(
    hear: Callable[[frames.FromEngine], None], keeper: CellKeeper | None, pace: Pace
) -> ScriptedChild:
    """Connect a scripted engine over a socket pair, as a launcher of the daemon does; it stores nothing."""
    assert keeper is None
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    _, engine = await loop.create_unix_connection(lambda: ScriptedEngine(pace), sock=theirs)
    _, link = await loop.create_unix_connection(lambda: EngineLink(hear), sock=ours)
    return ScriptedChild(engine, link)


def _ready(sequences: int) -> frames.Ready:
    return frames.Ready(
        sequences=sequences,
        policy="measured",
        context_tokens=CONTEXT_TOKENS,
        kv_bytes=1 << 20,
        device="cpu",
        can=["generate", "chat"],
        inputs={},
    )


def _prepared(prepare: frames.Prepare) -> frames.Prepared:
    """Return a prompt's bytes as its tokens."""
    params = prepare.params
    if params.messages is not None:
        text = "\n".join(message.text for message in params.messages).encode()
    else:
        text = (params.prompt or "").encode()
    tokens = params.tokens if params.tokens is not None else list(text)
    return frames.Prepared(prepare.key, array("i", tokens).tobytes(), params.max_tokens or _MAX_TOKENS)


def _refused(job: frames.PrepareTexts | frames.PrepareDecision, ability: str) -> frames.Refused:
    return frames.Refused(job.key, "model_unavailable", {"lacks": ability})


def _decoded(tokens: Iterable[int]) -> str:
    return bytes(token & 0xFF for token in tokens).decode(errors="replace")
