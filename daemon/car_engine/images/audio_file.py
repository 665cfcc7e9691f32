"""Sound files in requests: their bounds, from headers alone, and the parts that a decoder needs.

A decoder reserves memory for the length that a header claims, so every length is checked against the bytes that are
there, and the decoder gets a file that was put together anew: without metadata, and as long as was counted.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from car_base.ipc.types import DAMAGED_AUDIO
from car_engine.images.image_file import MAX_BYTES, MediaError
from car_protocol.limits import MAX_AUDIO_S

RATES = range(8_000, 192_001)
MAX_CHANNELS = 8

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_FMT = struct.Struct("<HHIIHH")
# Of an extensible format: the size of the extension, valid bits, mask of speakers; then the format itself.
_SUBFORMAT = _FMT.size + 8
# Writers that do not know the length when they begin leave the largest number.
_UNKNOWN_BYTES = 0xFFFFFFFF
_SYNC = 0xFFE00000
_LAYER_3 = 1
# kbit/s by the header's index: of MPEG 1, and of MPEG 2 and 2.5. Index 0 leaves the length of frames open.
_BITRATES = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_MPEG_1 = 3
# A first frame with one of these holds an index in place of sound.
_INDEXES = (b"Xing", b"Info", b"VBRI")
_INDEX_WITHIN = 64
_ID3_HEADER = 10
_TAGS_AT_END = (b"TAG", b"APETAGEX", b"LYRICS", b"ID3")


class AudioError(MediaError):
    """A sound that is refused; the message is a fixed text and figures."""


class AudioFile(NamedTuple):
    """A sound within bounds: frames of one sample a channel, frames a second, and its file without metadata."""

    frames: int
    rate: int
    data: bytes

    @property
    def seconds(self) -> int:
        """The whole seconds that it takes, at least 1."""
        return -(-self.frames // self.rate)


class _Mp3Frame(NamedTuple):
    """One frame of an MP3: its place and form."""

    start: int
    stop: int
    frames: int
    rate: int
    mono: bool


def read_audio(data: bytes) -> AudioFile:
    """Return a WAV or MP3 whose headers are within bounds; raises AudioError. The sound may still be damaged."""
    if len(data) > MAX_BYTES:
        raise AudioError(f"the audio has {len(data):,} bytes: the limit is {MAX_BYTES:,}")
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav(data)
    if data.startswith(b"ID3") or _is_sync(data, 0):
        return _mp3(data)
    raise AudioError("the audio is not a WAV or MP3: convert it to one")


def damaged_audio() -> AudioError:
    """Return the error of a file that is not a whole sound."""
    return AudioError(DAMAGED_AUDIO)


def check_seconds(seconds: int, what: str = "the audio of the request") -> None:
    """Raise AudioError for more seconds than a request may have."""
    if seconds > MAX_AUDIO_S:
        raise AudioError(f"{what} has {seconds:,} s, max_audio_s is {MAX_AUDIO_S:,}: send a shorter part")


def _bounded(frames: int, rate: int, data: bytes) -> AudioFile:
    if frames < 1:
        raise AudioError("the audio has no samples: send one that has")
    file = AudioFile(frames, rate, data)
    check_seconds(file.seconds, "the audio")
    return file


def _wav(data: bytes) -> AudioFile:
    form = None
    for kind, start, stop in _riff_chunks(data):
        if kind == b"fmt ":
            form = _form(data[start:stop])
        if kind == b"data":
            if form is None:
                raise damaged_audio()
            return _canonical(*form, data[start:stop])
    raise damaged_audio()


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield each chunk's kind, and the start and end of what it holds."""
    start = 12
    while start + 8 <= len(data):
        kind, size = data[start : start + 4], int.from_bytes(data[start + 4 : start + 8], "little")
        start += 8
        if kind == b"data" and size == _UNKNOWN_BYTES:
            size = len(data) - start
        if start + size > len(data):
            raise damaged_audio()
        yield kind, start, start + size
        start += size + size % 2


def _form(chunk: bytes) -> tuple[int, int, int, int]:
    """Return the coding, channels, rate and bits of a format chunk; raises AudioError."""
    if len(chunk) < _FMT.size:
        raise damaged_audio()
    coding, channels, rate, _, block, bits = _FMT.unpack_from(chunk)
    if coding == _EXTENSIBLE:
        coding = int.from_bytes(chunk[_SUBFORMAT : _SUBFORMAT + 2], "little")
    if bits not in _BITS.get(coding, ()):
        raise AudioError(f"the audio is a WAV of coding {coding} with {bits} bits: PCM and floats are supported")
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioError(f"the audio has {channels:,} channels: the limit is {MAX_CHANNELS}")
    if rate not in RATES:
        raise AudioError(f"the audio has {rate:,} samples a second: the limits are {RATES[0]:,} and {RATES[-1]:,}")
    if block != channels * bits // 8:
        raise damaged_audio()
    return coding, channels, rate, bits


def _canonical(coding: int, channels: int, rate: int, bits: int, sound: bytes) -> AudioFile:
    block = channels * bits // 8
    frames = len(sound) // block
    sound = sound[: frames * block]
    head = _FMT.pack(coding, channels, rate, rate * block, block, bits)
    size = struct.pack("<I", 20 + len(head) + len(sound))
    chunks = (b"RIFF", size, b"WAVEfmt ", struct.pack("<I", len(head)), head, b"data", struct.pack("<I", len(sound)))
    return _bounded(frames, rate, b"".join((*chunks, sound)))


def _mp3(data: bytes) -> AudioFile:
    start = _after_id3(data)
    frames = 0
    kept: list[bytes] = []
    first = None
    for frame in _mp3_frames(data, start):
        if first is None:
            first = frame
            if any(index in data[frame.start : min(frame.stop, frame.start + _INDEX_WITHIN)] for index in _INDEXES):
                continue
        if (frame.rate, frame.mono) != (first.rate, first.mono):
            raise AudioError("the audio is an MP3 that changes its rate or channels: convert it to one that does not")
        frames += frame.frames
        check_seconds(frames // frame.rate, "the audio")
        kept.append(data[frame.start : frame.stop])
    if first is None:
        raise damaged_audio()
    return _bounded(frames, first.rate, b"".join(kept))


def _mp3_frames(data: bytes, start: int) -> Iterator[_Mp3Frame]:
    """Yield the frames, which lie side by side up to the tags at the end; raises AudioError for anything else."""
    while start < len(data):
        if not _is_sync(data, start):
            if data.startswith(_TAGS_AT_END, start) or not data[start:].strip(b"\0"):
                return
            raise damaged_audio()
        frame = _mp3_frame(data, start)
        yield frame
        start = frame.stop


def _mp3_frame(data: bytes, start: int) -> _Mp3Frame:
    head = int.from_bytes(data[start : start + 4], "big")
    version, layer, bitrate, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if layer != _LAYER_3:
        raise AudioError("the audio is MPEG of another layer than 3: convert it to MP3 or WAV")
    if bitrate == 0:
        raise AudioError("the audio is an MP3 of free bit rate: convert it to one of a fixed or variable rate")
    if version not in _MP3_RATES or bitrate == 15 or rate == 3:
        raise damaged_audio()
    frames = 1152 if version == _MPEG_1 else 576
    hertz = _MP3_RATES[version][rate]
    length = frames // 8 * _BITRATES[version == _MPEG_1][bitrate] * 1000 // hertz + (head >> 9 & 1)
    if start + length > len(data):
        raise damaged_audio()
    return _Mp3Frame(start, start + length, frames, hertz, head >> 6 & 3 == 3)


def _is_sync(data: bytes, start: int) -> bool:
    return start + 4 <= len(data) and int.from_bytes(data[start : start + 4], "big") & _SYNC == _SYNC


def _after_id3(data: bytes) -> int:
    """Return the first byte after the tags at the start."""
    start = 0
    while data.startswith(b"ID3", start):
        size = data[start + 6 : start + _ID3_HEADER]
        if len(size) < 4 or max(size) > 0x7F:
            raise damaged_audio()
        start += _ID3_HEADER + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    while data[start : start + 1] == b"\0":
        start += 1
    return start
