"""Sound files: within bounds by their headers, or refused with the reason before anything decodes them."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_engine.images.audio_file import AudioError, read_audio
from tests.engine.images.sounds import MP3_FRAME, mp3, wav, wav_of


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 192_000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_a_wav_has_the_length_of_its_samples(rate: int, channels: int) -> None:
    file = read_audio(wav(1.5, rate=rate, channels=channels))
    assert (file.frames, file.rate, file.seconds) == (rate * 3 // 2, rate, 2)


def test_metadata_never_reach_the_decoder() -> None:
    plain = wav()
    noted = plain[:12] + b"LIST" + struct.pack("<I", 7) + b"remarks\0" + plain[12:] + b"more"
    assert read_audio(noted).data == plain
    tags = b"ID3\x04\0\0\0\0\x01\x00" + b"x" * 128
    assert read_audio(tags + mp3() + b"TAG" + b"y" * 125).data == mp3()
    index = MP3_FRAME[:21] + b"Info" + MP3_FRAME[25:]
    assert read_audio(index + mp3()).data == mp3()


def test_a_wav_whose_writer_left_its_length_open_ends_with_the_file() -> None:
    file = wav()
    assert read_audio(file[:40] + b"\xff" * 4 + file[44:]).data == file


def test_an_mp3_has_the_length_of_its_frames() -> None:
    file = read_audio(mp3(2))
    assert (file.frames, file.rate, file.seconds) == (76 * 1152, 44_100, 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a WAV or MP3"),
        (b"OggS" + bytes(100), "not a WAV or MP3"),
        (b"RIFF\0\0\0\0WAVE", "damaged or truncated"),
        (wav()[:-1], "damaged or truncated"),
        (wav()[:40], "damaged or truncated"),
        (wav_of(b""), "no samples"),
        (wav_of(b"\0"), "no samples"),
        (wav(1)[:24] + struct.pack("<I", 1_000_000) + wav(1)[28:], "1,000,000 samples a second"),
        (wav_of(bytes(100), rate=0), "0 samples a second"),
        (wav_of(bytes(100), channels=0), "0 channels"),
        (wav_of(bytes(100), channels=9), "9 channels: the limit is 8"),
        (wav_of(bytes(100), coding=85), "coding 85 with 16 bits"),
        (wav_of(bytes(100), bits=12), "coding 1 with 12 bits"),
        (wav_of(bytes(301 * 8_000), rate=8_000, bits=8), "301 s, max_audio_s is 300"),
        (wav_of(bytes(5 * 1024 * 1024)), "the limit is 5,242,880"),
        (mp3()[:-1], "damaged or truncated"),
        (mp3() + b"junk", "damaged or truncated"),
        (b"ID3\x04\0\0\xff\xff\xff\xff", "damaged or truncated"),
        (b"ID3\x04\0\0\0\0\0\0", "damaged or truncated"),
        (bytes([0xFF, 0xFB, 0x00, 0xC0]) + bytes(413), "free bit rate"),
        (bytes([0xFF, 0xFD, 0x90, 0xC0]) + bytes(413), "another layer"),
        (bytes([0xFF, 0xFB, 0xF0, 0xC0]) + bytes(413), "damaged or truncated"),
        (mp3() + bytes([0xFF, 0xFB, 0x94, 0xC0]) + bytes(380), "changes its rate"),
        (bytes([0xFF, 0xF3, 0x14, 0xC0] + [0] * 20) * 12_600, "max_audio_s is 300"),
    ],
)
def test_a_file_out_of_bounds_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(AudioError, match=why):
        read_audio(data)


@settings(max_examples=200)
@given(st.sampled_from([wav(0.01), mp3(0.1)]), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=6))
def test_any_damage_to_a_header_is_refused_or_bounded_by_the_bytes(file: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(file)
    for place, value in changes:
        damaged[place] = value
    try:
        found = read_audio(bytes(damaged))
    except AudioError:
        return
    assert len(found.data) <= len(damaged) + 100
    assert found.seconds <= 300
