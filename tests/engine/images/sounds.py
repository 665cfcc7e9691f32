"""Sound files for tests, made of their own bytes."""

import struct

import numpy as np

# MPEG 1 layer 3, 128 kbit/s, 44,100 Hz, one channel; all zeros behind the header decode to silence.
MP3_FRAME = bytes([0xFF, 0xFB, 0x90, 0xC0]) + bytes(413)
MP3_FRAME_S = 1152 / 44_100


def wav(seconds: float = 1, pitch: float = 440, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return a tone as 16-bit PCM."""
    frames = np.arange(int(seconds * rate))
    tone = (np.sin(frames * (2 * np.pi * pitch / rate)) * 20_000).astype("<i2")
    return wav_of(np.repeat(tone, channels).tobytes(), rate=rate, channels=channels)


def wav_of(sound: bytes, *, rate: int = 16_000, channels: int = 1, bits: int = 16, coding: int = 1) -> bytes:
    """Return a WAV with these bytes of samples, whatever its header claims."""
    block = channels * bits // 8 % 65_536
    form = struct.pack("<HHIIHH", coding, channels, rate, rate * block % 2**32, block, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(sound)) + sound
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def mp3(seconds: float = 1) -> bytes:
    """Return silence."""
    return MP3_FRAME * max(1, int(seconds / MP3_FRAME_S))
