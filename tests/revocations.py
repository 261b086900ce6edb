"""Revocation lists of the tests' certificate authorities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from dledger_base.issuing import Authority


def revocation_list(authority: Authority, *revoked: bytes) -> bytes:
    """Return a list in PEM, signed by an authority, that revokes certificates in PEM."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(
        x509.load_pem_x509_certificate(authority.certificate).subject, now - timedelta(hours=1), now + timedelta(days=1)
    )
    for certificate in revoked:
        serial = x509.load_pem_x509_certificate(certificate).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(authority._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
