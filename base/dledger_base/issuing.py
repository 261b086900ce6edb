"""A certificate authority of our own, for clusters that have none. Needs the extra `broker`.

Keys are on the curve P-256, which all TLS libraries of RocketMQ's clients know. Files are PEM. A file with a key is
created with mode 0600, so that only its owner can ever read it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED = timedelta(hours=1)
"""Time by which the start of a certificate's validity is dated back, because clocks of machines differ."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, certificate: Path, key: Path) -> None:
        """Write both files, the key's with mode 0600. Raises `OSError`."""
        write_private(key, self.key)
        certificate.write_bytes(self.certificate)


class Authority:
    """A new certificate authority, whose own certificate is valid for `life` from now on."""

    def __init__(self, name: str, life: timedelta) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _make_name(name)
        self._expires_at = datetime.now(UTC) + life
        self._certificate = (
            _start_certificate(self._name, self._name, self._key.public_key(), self._expires_at)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_make_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate in PEM, for the files of clients and servers that trust it."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, hosts: Sequence[str], life: timedelta | None = None) -> Issued:
        """Issue a certificate that servers and clients can use.

        `hosts` are the DNS names and IP addresses that it is valid for. It is valid for `life` from now on, by default
        as long as the authority.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        ends = self._expires_at if life is None else datetime.now(UTC) + life
        certificate = (
            _start_certificate(_make_name(name), self._name, key.public_key(), ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_make_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            certificate = certificate.add_extension(
                x509.SubjectAlternativeName([_make_host_name(host) for host in hosts]), critical=False
            )
        signed = certificate.sign(self._key, hashes.SHA256())
        return Issued(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, and replace an existing one. Raises `OSError`."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC) - _BACKDATED, ends - _BACKDATED))
        .not_valid_after(ends)
    )


def _make_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _make_host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
