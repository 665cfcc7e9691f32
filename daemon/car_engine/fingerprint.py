"""The fingerprint of what an answer depends on beside its request."""

import hashlib
from pathlib import Path

import msgspec

from car_base.host.files import identify
from car_base.ipc.frames import Load
from car_engine.confinement import files_of
from car_engine.llama.library import library_build
from car_protocol import __version__

# As many as tell the configurations of one machine apart.
_DIGEST_BYTES = 6


def fingerprint_of(load: Load) -> str:
    """Return the fingerprint of a load; a file that is gone meanwhile counts for nothing."""
    found = [identify(Path(path)) for path in files_of(load)]
    files = [(each.size, each.digest) for each in found if each is not None]
    made = (__version__, library_build(), files, list(load.adapters), load.device, load.packed, load.kv_type)
    return "card-" + hashlib.blake2b(msgspec.msgpack.encode(made), digest_size=_DIGEST_BYTES).hexdigest()
