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
from car_client.door.certificate import CertificateError, serving

# Clocks of machines differ.
_LEEWAY = timedelta(days=1)
# The longest time for which Apple's systems take a certificate, less the leeway.
_LASTS = timedelta(days=824)
_RENEWED_BEFORE = timedelta(days=30)


def ensure_certificate(certificate: Path, private_key: Path, names: Sequence[str], addresses: Sequence[str]) -> bool:
    """Make a certificate, unless the present pair serves, has the names and lasts; return whether it was made.

    Raises CertificateError.
    """
    try:
        if certificate.exists() and _serves(certificate, private_key, names):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_key.unlink(missing_ok=True)  # its mode would be kept
        replace_file(private_key, private)
        replace_file(certificate, _signed(key, names, addresses))
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename}: {os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise CertificateError(f"{certificate} is not a certificate: remove it ({error})") from error
    return True


def _serves(certificate: Path, private_key: Path, names: Sequence[str]) -> bool:
    """Return whether a certificate has its key, and the names, and lasts."""
    present = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        serving(certificate, private_key)
    except CertificateError:
        return False
    lasts = present.not_valid_after_utc - datetime.now(UTC) > _RENEWED_BEFORE
    try:
        found = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return lasts and set(names) <= set(found.get_values_for_type(x509.DNSName))


def _signed(key: ec.EllipticCurvePrivateKey, names: Sequence[str], addresses: Sequence[str]) -> bytes:
    """Return a certificate in PEM. It is no authority: its key can sign for no other site."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "card")])
    places: list[x509.GeneralName] = [x509.DNSName(each) for each in dict.fromkeys(["localhost", *names])]
    own = dict.fromkeys(["127.0.0.1", "::1", *addresses])
    places += [x509.IPAddress(ipaddress.ip_address(each)) for each in own]
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
