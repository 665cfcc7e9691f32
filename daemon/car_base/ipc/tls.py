"""TLS 1.3 between the two holders of one key pair, which trust nothing else."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

HANDSHAKE_S = 5.0


def context_of(pair: bytes, side: Literal["client", "server"]) -> ssl.SSLContext:
    """Return the context of one side; `pair` is a certificate with its key in PEM. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "server" else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Because the certificate is the peer's identity, whatever address it has.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == "server":
        # A seat takes one connection, so nothing is resumed.
        context.num_tickets = 0
    with _as_file(pair) as path:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory, because OpenSSL reads keys from files only; its user alone may read it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pair", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
