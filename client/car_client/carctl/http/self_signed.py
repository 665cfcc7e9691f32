"""A certificate that the door signs itself, for machines of one network that get a copy of it.

The package cryptography makes it (the extra `lan`): openssl's command is another program on each system, or missing.
"""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from car_client.carctl.config.card_toml import replace_file
from car_client.door.certificate import CertificateError, refusal

# Clocks of machines differ.
_LEEWAY = timedelta(days=1)
# The longest time for which Apple's systems take a certificate, less the leeway.
_LASTS = timedelta(days=824)
_RENEWED_BEFORE = timedelta(days=30)


def ensure_certificate(certificate: Path, private_key: Path, hosts: Sequence[str], addresses: Sequence[str]) -> bool:
    """Make a certificate of hosts and of today's addresses; return whether it was made.

    The present pair is kept if it serves, lasts, and clients take it from the hosts. Raises CertificateError.
    """
    try:
        if certificate.exists() and _serves(certificate, private_key, hosts):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_key.unlink(missing_ok=True)  # its mode would be kept
        replace_file(private_key, private)
        replace_file(certificate, _signed(key, [*hosts, *addresses]))
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename}: {os.strerror(error.errno or 0)}") from error
    return True


def _serves(certificate: Path, private_key: Path, hosts: Sequence[str]) -> bool:
    """Return whether a certificate has its key, lasts, and is one of the hosts."""
    try:
        present = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError as error:
        raise CertificateError(f"{certificate} is not a certificate: remove it ({error})") from error
    lasts = present.not_valid_after_utc - datetime.now(UTC) > _RENEWED_BEFORE
    try:
        return lasts and not any(refusal(certificate, private_key, each) for each in ["localhost", *hosts])
    except CertificateError:
        return False


def _signed(key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> bytes:
    """Return a certificate in PEM. It is no authority: its key can sign for no other site."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "card")])
    places = [_place(each) for each in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])]
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
