"""The certificate of the door's https addresses: what TLS takes of it on both sides, and its fingerprint."""

import hashlib
import os
import re
import ssl
import stat
from enum import Enum, auto
from pathlib import Path

from car_client.errors import CardError

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# OpenSSL's codes if the issuer of a certificate is not at hand, or is an unknown authority.
_ISSUER_UNKNOWN = frozenset({2, 18, 19, 20, 21})
_HOW = "run `carctl http enable --lan`, or set certificate and private_key of [http]"


class CertificateError(CardError):
    """The certificate or its key cannot be used; the message says what to do."""


class Trust(Enum):
    """Why clients trust a certificate: a copy of its file, their systems, or a copy of its authority's certificate."""

    COPY = auto()
    SYSTEM = auto()
    AUTHORITY = auto()


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
        why = f"{certificate} and {private_key} are not a certificate and its key ({_reason(error)})"
        raise CertificateError(f"{why}: {_HOW}") from error
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
    try:
        context.load_verify_locations(cadata=_first(certificate))
    except ssl.SSLError as error:
        raise CertificateError(f"{certificate} is not a certificate ({_reason(error)}): {_HOW}") from error
    return context


def refusal(certificate: Path, private_key: Path, host: str) -> str | None:
    """Return why clients refuse the certificate from a name or address, None if they take it; its issuer aside.

    Raises CertificateError.
    """
    trusting = pinning(certificate)
    trusting.check_hostname = True
    error = _handshake(trusting, certificate, private_key, host)
    return None if error is None else str(error.verify_message).rstrip(".")


def trusted_by(certificate: Path, private_key: Path) -> Trust:
    """Return what clients need to trust the certificate; raises CertificateError."""
    copy, systems = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    copy.load_verify_locations(certificate)
    systems.load_default_certs()
    for context, trust in ((copy, Trust.COPY), (systems, Trust.SYSTEM)):
        context.check_hostname = False
        error = _handshake(context, certificate, private_key, None)
        if error is None or error.verify_code not in _ISSUER_UNKNOWN:
            return trust
    return Trust.AUTHORITY


def check_pair(certificate: Path, private_key: Path) -> None:
    """Raise CertificateError if TLS cannot use a pair, or if the certificate, which others get, has a private key."""
    if _PRIVATE.search(_text(certificate)):
        raise CertificateError(f"{certificate} has a private key, and others get a copy: give the certificate alone")
    _handshake(pinning(certificate), certificate, private_key, None)


def _handshake(
    trusting: ssl.SSLContext, certificate: Path, private_key: Path, host: str | None
) -> ssl.SSLCertVerificationError | None:
    """Return why a client refuses the certificate, by both sides of a handshake without a connection."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving(certificate, private_key).wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error
        except ssl.SSLError as error:
            raise CertificateError(f"TLS cannot use {certificate} ({_reason(error)}): {_HOW}") from error
    return None


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate as openssl and browsers print it; raises CertificateError."""
    return hashlib.sha256(_first(certificate)).digest().hex(":").upper()


def _first(certificate: Path) -> bytes:
    """Return the first certificate of a file; raises CertificateError."""
    found = _PEM.search(_text(certificate))
    try:
        return ssl.PEM_cert_to_DER_cert(found[0] if found else "")
    except ValueError as error:
        raise CertificateError(f"{certificate} is not a certificate: {_HOW}") from error


def _text(certificate: Path) -> str:
    try:
        return certificate.read_text(errors="replace")
    except OSError as error:
        raise CertificateError(f"cannot read {certificate}: {os.strerror(error.errno or 0)}; {_HOW}") from error


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    return (error.reason or "unknown").lower().replace("_", " ")


def _no_password() -> str:
    """Refuse an encrypted key: a service has no terminal to read its password from; raises CertificateError."""
    raise CertificateError("the private key is encrypted: a door that starts by itself needs it without a password")
