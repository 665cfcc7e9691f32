"""The store of one engine, and the digests of all that the values of its cells and its answers depend on."""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from car_base.host.files import identify
from car_base.ipc.frames import FromEngine, Load, Warned
from car_base.ipc.types import KvType
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored
from car_engine.confinement import files_of
from car_engine.llama.library import library_build
from car_engine.loaded import LoadedModel
from car_engine.sizing import layers_of
from car_engine.stored.cell_folder import CellFolder
from car_engine.stored.cell_store import CellStore
from car_engine.stored.cell_writer import CellWriter
from car_protocol import __version__


class Maker(Struct, frozen=True):
    """All that the values of cells depend on; the library's build names the features of the CPU too."""

    files: list[tuple[int, int, int, bytes]]  # inode, size, time of change and digest, of the model and what is beside
    adapters: list[str]  # their names, in the order of `files`
    library: str
    device: str
    layers: str
    packed: bool
    kv_type: KvType
    threads: int
    context_tokens: int  # positions of some models are scaled by it

    @property
    def digest(self) -> bytes:
        """A digest of all."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).digest()


def open_store(
    load: Load,
    loaded: LoadedModel,
    put: Callable[[CellsRead | CellsStored], None],
    send: Callable[[FromEngine], None],
    files: socket.socket | None,
) -> CellStore | None:
    """Open the folder of a load's cells; None without one.

    `files` is the socket to the daemon's keeper of the folder.

    A folder or a file that cannot be used is a warning, and nothing is stored.
    """
    if load.cells is None or files is None:
        return None
    try:
        folder = CellFolder(Path(load.cells), load.cells_bytes, _maker(load, loaded).digest, CellWriter(files))
        found = folder.found()
    except OSError as error:
        send(Warned("cells.no_folder", {"folder": load.cells, "why": error.strerror, "do": "change cache_dir"}))
        return None
    # As much as cells may take outside of the context, and the system takes it back first.
    return CellStore(folder, found, put, lambda event, facts: send(Warned(event, facts)), load.saved_bytes)


def _maker(load: Load, loaded: LoadedModel) -> Maker:
    files = []
    for path in files_of(load):
        if path == load.chat_template:
            continue  # it makes other tokens, and no other cells
        if (found := identify(Path(path))) is None:
            raise FileNotFoundError(2, f"{path} cannot be read")
        files.append((found.inode, found.size, found.modified_ns, found.digest))
    return Maker(
        files=files,
        adapters=list(load.adapters),
        library=library_build(),
        device=load.device,
        layers=layers_of(load, loaded.placed),
        packed=load.packed,
        kv_type=load.kv_type,
        threads=loaded.size.threads,
        context_tokens=loaded.context.context_tokens,
    )


# As many as tell the configurations of one machine apart.
_DIGEST_BYTES = 6


def fingerprint_of(load: Load) -> str:
    """Return the fingerprint of a load; a file that is gone meanwhile counts for nothing."""
    found = [identify(Path(path)) for path in files_of(load)]
    files = [(each.size, each.digest) for each in found if each is not None]
    made = (__version__, library_build(), files, list(load.adapters), load.device, load.packed, load.kv_type)
    return "card-" + hashlib.blake2b(msgspec.msgpack.encode(made), digest_size=_DIGEST_BYTES).hexdigest()
