"""The certificate of the door's https addresses: what TLS takes of it on both sides, and its fingerprint."""

import hashlib
import os
import re
import ssl
import stat
from pathlib import Path

from car_client.errors import CardError

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HOW = "run `carctl http enable --lan`, or set certificate and private_key of [http]"


class CertificateError(CardError):
    """The certificate or its key cannot be used; the message says what to do."""


def serving(certificate: Path, private_key: Path) -> ssl.SSLContext:
    """Return the TLS of a server; raises CertificateError, also for a key that other users may read."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Debian's Python leaves it to the system's configuration
    # A client of TLS 1.2 would begin handshakes without end on a connection that was admitted.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        if private_key.stat().st_mode & stat.S_IROTH:
            raise CertificateError(
                f"all users may read {private_key}: run chmod 600 on it, and replace the certificate"
            )
        context.load_cert_chain(certificate, private_key, password=_no_password)
    except ssl.SSLError as error:
        raise CertificateError(f"{certificate} and {private_key} are not a certificate and its key: {_HOW}") from error
    except OSError as error:
        place = error.filename or certificate
        raise CertificateError(f"cannot read {place}: {os.strerror(error.errno or 0)}; {_HOW}") from error
    return context


def pinning(certificate: Path) -> ssl.SSLContext:
    """Return the TLS of a client that trusts this certificate alone, under any name; raises CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=_first(certificate))
    return context


def refusal(certificate: Path, private_key: Path, host: str) -> str | None:
    """Return why clients with a copy of the certificate refuse it from a name or address, None if they take it.

    Both sides of a handshake without a connection find it. Raises CertificateError.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = pinning(certificate)
    trusting.check_hostname = True
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving(certificate, private_key).wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message).rstrip(".")
    return None


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate as openssl and browsers print it; raises CertificateError."""
    return hashlib.sha256(_first(certificate)).digest().hex(":").upper()


def _first(certificate: Path) -> bytes:
    """Return the first certificate of a file; raises CertificateError."""
    try:
        found = _PEM.search(certificate.read_text(errors="replace"))
        return ssl.PEM_cert_to_DER_cert(found[0] if found else "")
    except OSError as error:
        raise CertificateError(f"cannot read {certificate}: {os.strerror(error.errno or 0)}; {_HOW}") from error
    except ValueError as error:
        raise CertificateError(f"{certificate} is not a certificate: {_HOW}") from error


def _no_password() -> str:
    """Refuse an encrypted key: a service has no terminal to read its password from; raises CertificateError."""
    raise CertificateError("the private key is encrypted: a door that starts by itself needs it without a password")
