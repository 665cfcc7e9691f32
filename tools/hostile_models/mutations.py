"""Damages a model file as bad disks and bad people do; the same seed damages it in the same way."""

import random
import struct

_LARGE = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def mutate(data: bytes, header: int, seed: int) -> bytes:
    """Return the file with one to three faults, most of them among its first `header` bytes."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        data = rng.choice(_FAULTS)(data, header, rng)
    return data


def _flip(data: bytes, header: int, rng: random.Random) -> bytes:
    at = rng.randrange(min(header, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _replace(data: bytes, header: int, rng: random.Random) -> bytes:
    """Write random bytes over some, mostly fewer than those, so that the rest moves."""
    at = rng.randrange(min(header, len(data)))
    return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at + 8 :]


def _truncate(data: bytes, header: int, rng: random.Random) -> bytes:
    return data[: max(1, rng.randrange(rng.choice((header, len(data)))))]


def _insert(data: bytes, header: int, rng: random.Random) -> bytes:
    at = rng.randrange(min(header, len(data)))
    return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]


def _large_length(data: bytes, header: int, rng: random.Random) -> bytes:
    """Write a large number where the file has a small one of 64 bits, as lengths and counts are."""
    start = rng.randrange(min(header, len(data)))
    at = data.find(bytes(6), start)
    return _write(data, max(0, at - 2), struct.pack("<Q", rng.choice(_LARGE)))


def _small_change(data: bytes, header: int, rng: random.Random) -> bytes:
    """Write another small number where the file has one of 32 bits."""
    at = data.find(bytes(3), rng.randrange(min(header, len(data))))
    return _write(data, max(0, at - 1), struct.pack("<I", rng.choice((*range(16), 512, 513, 65_536))))


def _write(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


_FAULTS = (_flip, _flip, _flip, _replace, _truncate, _insert, _large_length, _small_change, _small_change)
