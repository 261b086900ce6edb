"""A certificate is used as soon as it is there, and the one before until then."""

import asyncio
import ssl
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dledger.errors import ConfigError
from dledger.net.tls import TlsContext, TlsFiles
from dledger_serving.certificates import Renewal, ends_at


async def shown(port, certificates) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=certificates.client())
    try:
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()


async def test_a_replaced_certificate_is_shown_without_a_restart(serving, certificates):
    context = TlsContext.for_server(certificates.files)
    async with serving(context=context) as port:
        before = await shown(port, certificates)
        assert not context.refresh()
        certificates.replace()
        assert context.refresh()
        assert await shown(port, certificates) != before


async def test_half_of_a_replacement_changes_nothing(serving, certificates, caplog):
    """Certificate and key are two files: between the two writes they do not fit."""
    context = TlsContext.for_server(certificates.files)
    key = certificates.files.key.read_bytes()
    async with serving(context=context) as port:
        before = await shown(port, certificates)
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


def test_its_end_is_known(certificates):
    context = TlsContext.for_server(certificates.files)
    first = ends_at(context)
    certificates.replace(life=timedelta(hours=2))
    assert ends_at(context) == first, "what is shown, not what stands in the file"
    context.refresh()
    assert first - ends_at(context) == pytest.approx(22 * 3600, abs=120)


def test_an_authority_that_comes_later_is_trusted(certificates, tmp_path):
    context = TlsContext.for_client(TlsFiles(authority=certificates.trusted))
    assert len(context.context.get_ca_certs()) == 1
    other = type(certificates)(tmp_path_of(tmp_path))
    certificates.trusted.write_bytes(certificates.authority.certificate + other.authority.certificate)
    assert context.refresh()
    assert len(context.context.get_ca_certs()) == 2


def tmp_path_of(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: files.certificate.unlink(), r"tls_cert_file .*cert.pem cannot be read \(No such file"),
        (lambda files: files.key.unlink(), r"tls_key_file .*key.pem cannot be read \(No such file"),
        (lambda files: files.certificate.write_text("nonsense"), "must be a certificate and its key in PEM"),
        (lambda files: files.key.chmod(0o644), r"tls_key_file .*key.pem has mode 0644, so that others can read"),
    ],
)
def test_files_that_cannot_be_used_are_named(certificates, spoil, said):
    spoil(certificates.files)
    with pytest.raises(ConfigError, match=said):
        TlsContext.for_server(certificates.files)


def test_a_key_with_a_password_is_refused_at_once(certificates):
    """OpenSSL would ask on the terminal."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(certificates.files.key.read_bytes(), None)
    certificates.files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="the key without a password"):
        TlsContext.for_server(certificates.files)


def test_an_authority_that_is_none_is_named(certificates):
    certificates.trusted.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"tls_ca_file .*ca\.pem cannot be used"):
        TlsContext.for_client(TlsFiles(authority=certificates.trusted))


async def test_files_are_looked_at_again_and_again(certificates, monkeypatch):
    monkeypatch.setattr("dledger_serving.certificates.REFRESH_S", 0.0)
    looked = asyncio.Event()
    context = TlsContext.for_server(certificates.files)
    before, refresh = context.context, context.refresh
    monkeypatch.setattr(context, "refresh", lambda: refresh() and loop.call_soon_threadsafe(looked.set))
    loop = asyncio.get_running_loop()
    renewal = Renewal([context], lambda: None)
    renewal.start()
    certificates.replace()
    async with asyncio.timeout(30):
        await looked.wait()
    renewal.stop()
    assert context.context is not before


async def test_a_listener_that_takes_one_context_for_good_shows_the_new_certificate(certificates):
    context = TlsContext.for_server(certificates.files)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context.accepting)
    port = SimpleNamespace(number=server.sockets[0].getsockname()[1])
    before = await shown(port, certificates)
    certificates.replace()
    context.refresh()
    assert await shown(port, certificates) != before
    server.close()


def test_nothing_before_1_2_is_spoken(certificates):
    assert TlsContext.for_server(certificates.files).context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert TlsContext.for_client(TlsFiles()).context.minimum_version is ssl.TLSVersion.TLSv1_2
