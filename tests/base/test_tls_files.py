"""A certificate is used as soon as its files are there, and the former one until then."""

import asyncio
import contextlib
import dataclasses
import ssl
from datetime import timedelta

import pytest

from dledger.errors import ConfigError
from dledger_base.certificates import Renewal, ends_at
from dledger_base.issuing import Authority
from dledger_base.tls import TlsContext, TlsFiles
from tests.revocations import revocation_list


@pytest.fixture
def context(certificates):
    return TlsContext.for_server(certificates.files)


async def shown(port, certificates) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=certificates.client())
    try:
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()


async def test_a_replaced_certificate_is_shown_without_a_restart_and_half_of_it_changes_nothing(
    serving, certificates, context, caplog
):
    """Certificate and key are two files. Between the two writes they do not match."""
    key = certificates.files.key.read_bytes()
    async with serving(context=context) as port:
        before = await shown(port, certificates)
        assert not context.refresh()
        certificates.replace()
        new = certificates.files.key.read_bytes()
        certificates.files.key.write_bytes(key)
        assert not context.refresh()
        assert not context.refresh()
        assert await shown(port, certificates) == before
        assert len([record for record in caplog.records if "certificate_refused" in record.message]) == 1
        certificates.files.key.write_bytes(new)
        assert context.refresh()
        assert await shown(port, certificates) != before


def test_the_expiry_of_the_shown_certificate_is_known(certificates, context):
    first = ends_at(context)
    certificates.replace(life=timedelta(hours=2))
    assert ends_at(context) == first, "what is shown, not what stands in the file"
    context.refresh()
    assert first - ends_at(context) == pytest.approx(22 * 3600, abs=120)


def test_an_authority_that_comes_later_is_trusted(certificates):
    context = TlsContext.for_client(TlsFiles(authority=certificates.trusted))
    assert len(context.context.get_ca_certs()) == 1
    other = Authority("another", timedelta(days=1))
    certificates.trusted.write_bytes(certificates.authority.certificate + other.certificate)
    assert context.refresh()
    assert len(context.context.get_ca_certs()) == 2


def lock(files: TlsFiles) -> None:
    """Give the key a password, for which OpenSSL would ask on the terminal."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    how = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    files.key.write_bytes(key.private_bytes(*how, serialization.BestAvailableEncryption(b"secret")))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: files.certificate.unlink(), r"tls_cert_file .*cert.pem cannot be read \(No such file"),
        (lambda files: files.key.unlink(), r"tls_key_file .*key.pem cannot be read \(No such file"),
        (lambda files: files.certificate.write_text("nonsense"), "must be a certificate and its key in PEM"),
        (lambda files: files.key.chmod(0o644), r"tls_key_file .*key.pem has mode 0644, so that others can read"),
        (lock, "the key without a password"),
    ],
)
def test_files_that_cannot_be_used_are_named(certificates, spoil, said):
    spoil(certificates.files)
    with pytest.raises(ConfigError, match=said):
        TlsContext.for_server(certificates.files)


@pytest.mark.parametrize("content", [None, b"nonsense", "its authority's certificate"])
def test_authority_files_and_revocation_lists_that_cannot_be_used_are_named(certificates, tmp_path, content):
    lists = tmp_path / "revoked.pem"
    if content is not None:
        lists.write_bytes(content if isinstance(content, bytes) else certificates.authority.certificate)
    with pytest.raises(ConfigError, match=r"tls_crl_file .*revoked\.pem (cannot be|holds no)"):
        TlsContext.for_server(dataclasses.replace(certificates.files, revoked=lists))
    certificates.trusted.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"tls_ca_file .*ca\.pem cannot be used"):
        TlsContext.for_client(TlsFiles(authority=certificates.trusted))


async def test_files_are_looked_at_again_and_again(certificates, context, monkeypatch):
    monkeypatch.setattr("dledger_base.certificates.REFRESH_S", 0.0)
    looked, loop = asyncio.Event(), asyncio.get_running_loop()
    before, refresh = context.context, context.refresh
    monkeypatch.setattr(context, "refresh", lambda: refresh() and loop.call_soon_threadsafe(looked.set))
    renewal = Renewal([context], lambda: None)
    renewal.start()
    certificates.replace()
    async with asyncio.timeout(30):
        await looked.wait()
    renewal.stop()
    assert context.context is not before


def test_nothing_before_1_2_is_spoken(context):
    for each in (context, TlsContext.for_client(TlsFiles())):
        assert each.context.minimum_version is ssl.TLSVersion.TLSv1_2


def joined(server: TlsContext, client: ssl.SSLContext) -> None:
    """Do a handshake in memory. Raise `ssl.SSLError` of the side that refuses the other."""
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(downwards, upwards, server_hostname="127.0.0.1"),
        server.context.wrap_bio(upwards, downwards, server_side=True),
    )
    for side in sides * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()


def test_a_revoked_certificate_is_refused_as_soon_as_the_list_says_so(certificates, tmp_path):
    lists = tmp_path / "revoked.pem"
    lists.write_bytes(revocation_list(certificates.authority))
    files = dataclasses.replace(certificates.files, authority=certificates.trusted, revoked=lists)
    server = TlsContext.for_server(files, ssl.CERT_REQUIRED)
    client = certificates.client()
    client.load_cert_chain(certificates.files.certificate, certificates.files.key)
    joined(server, client)
    lists.write_bytes(revocation_list(certificates.authority, certificates.files.certificate.read_bytes()))
    assert server.refresh()
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        joined(server, client)
