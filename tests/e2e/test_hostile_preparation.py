"""What strangers send to be prepared: tricks of templates, grammars, images, sounds, beside a stream of the engine.

Each costs its own request: no engine ends, and the stream goes on.
"""

import base64
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import Daemon, Json, RawClient, configured, conversation, endless, running
from tests.engine.grammar.test_hostile_grammars import HOSTILE
from tests.engine.images.pictures import gif, jpeg, jpeg_segment, png, png_chunk, png_header, png_rows
from tests.engine.images.sounds import MP3_FRAME, mp3, wav, wav_of
from tests.pace import lateness_beside
from tools.hostile_models.templates import TEMPLATES, one_for_all
from tools.random_model import generate
from tools.random_models.audio_projector import generate_audio_projector
from tools.random_models.projector import generate_projector

pytestmark = pytest.mark.slow
TRICKS, NUMBER_OF_TRICKS = one_for_all()
# The first 20 are loops, each of which ends at the same limit of CPU time.
PLAYED = [*range(0, 20, 5), *range(20, NUMBER_OF_TRICKS)]
# They explode when they are compiled, or do not compile.
AT_THE_LOAD = list(TEMPLATES.values())[NUMBER_OF_TRICKS - 5 : -5]
GRAMMARS: list[Json] = [
    {"grammar": hostile} if isinstance(hostile, str) else {"json_schema": hostile} for hostile in HOSTILE.values()
] + [
    {"grammar": text}
    for text in (
        *("", "root", "root ::=", "root ::= (", 'root ::= "', "root ::= [", "root ::= [z-a]", "root ::= nothing"),
        *("root ::= root", "root ::= a\na ::= b\nb ::= a", 'root ::= "a"{9,3}', 'root ::= "a"{99999999999}'),
        *('root ::= ("a"* )*', "root ::= " + "(" * 9999 + '"a"' + ")" * 9999, 'root ::= "a"\n' * 9999, "\0" * 9999),
        *("root ::= " + "[^a]{1000}{1000}", "root ::= " + '"a" | ' * 20_000 + '"b"'),
    )
]
METADATA = png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 20))) * 1000
ROWS = png_rows(bytes(100))
IMAGES: list[bytes] = [
    *(b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", bytes(1 << 20)),
    *(png(8, 8)[:40], png(8, 8)[:-20], jpeg(64, 64)[:50], gif(9, 9)[:30]),
    # A header of another size than its picture, or of one that no machine has memory for.
    *(png_header(4000, 4000) + ROWS, png_header(2**31 - 1, 2**31 - 1) + ROWS, png_header(0, 0) + ROWS),
    *(png_header(8192, 1) + ROWS, gif(9, 9)[:6] + b"\xff\xff\xff\xff" + gif(9, 9)[10:]),
    # Pictures of 16 megapixels in some kilobytes.
    *(png(4000, 4000), png_header(4000, 4000, depth=16, kind=6) + png_rows(bytes(4000 * 32_001))),
    *(png_header(8, 8) + METADATA + ROWS, png_header(8, 8) + png_chunk(b"tEXt", b"") * 99_999 + ROWS),
    jpeg(64, 64)[:-2] + jpeg_segment(0xDA, b"\1\1\0\0\x3f\0") * 9999,
    jpeg(64, 64)[:2] + jpeg_segment(0xE1, b"Exif\0\0" + bytes(60_000)) * 60 + jpeg(64, 64)[2:],
]
SOUNDS: list[bytes] = [
    *(b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"ID3", b"\xff\xfb", bytes(1 << 20)),
    *(wav(1)[:30], wav(1)[:-100], mp3(1)[:-7], MP3_FRAME[:10]),
    *(wav_of(b"", rate=16_000), wav_of(bytes(99), rate=0), wav_of(bytes(99), rate=2**32 - 1)),
    *(wav_of(bytes(99), channels=65_535), wav_of(bytes(99), bits=0), wav_of(b"\xff" * 9999, bits=32, coding=3)),
    wav(1)[:40] + struct.pack("<I", 2**32 - 2) + wav(1)[44:],
    b"ID3\4\0\0\x7f\x7f\x7f\x7f" + MP3_FRAME,
    b"ID3\4\0\0\0\0\0\0" * 99_999 + MP3_FRAME,
    MP3_FRAME * 9999,
]
_TOKENS = 2000
REASONS = {"invalid_params", "limit", "context_exceeded", "model_unavailable"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon whose model has every trick in its template, and sees; one that hears; one for each bad template."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "base.gguf", "tiny", "f32")
        generate_projector(folder / "eyes.gguf", "tiny")
        generate_audio_projector(folder / "ears.gguf", "tiny")
        (folder / "tricks.jinja").write_text(TRICKS)
        base = f'path = "{folder}/base.gguf"\nsequences = 4\n'
        tables = f'[models.base]\n{base}context_tokens = 4096\nprojector = "{folder}/eyes.gguf"\n'
        tables += f'chat_template = "{folder}/tricks.jinja"\n'
        tables += f'[models.ears]\n{base}context_tokens = 512\nprojector = "{folder}/ears.gguf"\n'
        for number, source in enumerate(AT_THE_LOAD):
            (folder / f"{number}.jinja").write_text(source)
            tables += f'[models.t{number}]\n{base}context_tokens = 256\nchat_template = "{folder}/{number}.jinja"\n'
        with running(folder, *configured(folder, f'default_model = "base"\n{tables}')) as daemon:
            yield daemon.ready()


class Beside:
    """Streams of the default model, one after the other: their chunks, their ends and the longest gap in a stream."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._over = threading.Event()
        self.chunks = 0
        self.gap_s = 0.0
        self.ends: list[Json] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End with the stream that runs."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            stream = self._client.send("infer_stream", endless(max_tokens=_TOKENS))
            self._client.first_chunk(stream)
            last, ended = time.monotonic(), False
            while not ended:
                message = self._client.receive()
                now = time.monotonic()
                self.gap_s, last = max(self.gap_s, now - last), now
                self.chunks += 1
                ended = message.get("id") == stream
            self.ends.append(message)


@contextmanager
def beside_a_stream(daemon: Daemon) -> Iterator[RawClient]:
    """Yield a client beside streams that go on in time and end whole, while no engine ends.

    There are two, so that one goes on while the other begins.
    """
    with daemon.connect() as one, daemon.connect() as two, daemon.connect() as client, lateness_beside() as late:
        streams = [Beside(one), Beside(two)]
        for stream in streams:
            stream.start()
        try:
            yield client
        finally:
            for stream in streams:
                stream.stop()
        models = client.result("daemon/status")["models"]
    assert {engine["restarts"] for model in models for engine in model["engines"]} == {0}
    assert "engine.stuck" not in daemon.log.read_text()
    ends = [end for stream in streams for end in stream.ends]
    assert {end["result"]["usage"]["completion_tokens"] for end in ends} == {_TOKENS}
    gap_s = max(stream.gap_s for stream in streams)
    print(f"{len(ends)} streams, {sum(stream.chunks for stream in streams)} chunks, worst gap {gap_s:.3f} s")
    assert gap_s <= 1.0 * max(late)


def outcomes(client: RawClient, requests: Sequence[Json]) -> list[str]:
    """Return how each request ended: with an answer, or the reason of its error."""
    found = []
    for request in requests:
        answer = client.call("infer", {"max_tokens": 2, "ignore_eos": True, "seed": 1, **request})
        found.append("answered" if "result" in answer else answer["error"]["data"]["reason"])
    return found


def at_the_loads(daemon: Daemon) -> list[str]:
    """Return how a request to each model with a bad template ended."""
    loads = []
    with daemon.connect() as client:
        for number in range(len(AT_THE_LOAD)):
            loads += outcomes(client, [{"model": f"t{number}", "messages": conversation("Hi")}])
            client.result("models/unload", {"model": f"t{number}"})
    return loads


def test_hostile_templates_cost_their_own_requests_alone(daemon: Daemon) -> None:
    with beside_a_stream(daemon) as client, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(at_the_loads, daemon)
        ends = outcomes(client, [{"messages": conversation(str(trick))} for trick in PLAYED])
        loads = loading.result()
    assert len(ends + loads) == 44
    assert set(ends + loads) <= REASONS | {"answered"}
    # Those that write what strangers may not see write the rest of their text.
    assert ends.count("answered") < 20


def test_hostile_grammars_cost_their_own_requests_alone(daemon: Daemon) -> None:
    with beside_a_stream(daemon) as client:
        ends = outcomes(client, [{"prompt": "Hi", **grammar} for grammar in GRAMMARS])
    assert len(ends) >= 40
    assert set(ends) <= REASONS | {"answered"}


def test_hostile_images_and_sounds_cost_their_own_requests_alone(daemon: Daemon) -> None:
    with beside_a_stream(daemon) as client:
        ends = []
        for kind, model, files in (("image", "base", IMAGES), ("audio", "ears", SOUNDS)):
            for file in files:
                part = {"type": kind, "data": base64.b64encode(file).decode()}
                ends += outcomes(client, [{"model": model, "messages": [{"role": "user", "content": [part]}]}])
    assert len(ends) == 40
    assert set(ends) <= REASONS | {"answered"}
    assert ends.count("answered") >= 2
