"""With TLS the peer port works as without. A node that speaks no TLS is a stranger.

`loopback.pem` is a self-signed certificate for 127.0.0.1 and its key, valid for a hundred years, for these tests only.
"""

import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dledger.core.messages import Append, Heartbeat
from dledger.net.connection import certified_names
from dledger.net.settings import LinkLimits, PeerTls
from dledger.types import Lane
from dledger_base.issuing import Authority
from dledger_base.tls import TlsContext, TlsFiles

PEM = Path(__file__).with_name("loopback.pem")


@pytest.fixture
def tls(tmp_path: Path) -> PeerTls:
    files = TlsFiles(certificate=private(tmp_path), authority=PEM)
    return PeerTls(TlsContext.for_server(files, ssl.CERT_REQUIRED), TlsContext.for_client(files))


def private(tmp_path: Path) -> Path:
    """Return the path of a copy of certificate and key that only its owner can read."""
    copy = tmp_path / "node.pem"
    copy.write_bytes(PEM.read_bytes())
    copy.chmod(0o600)
    return copy


async def test_messages_cross_encrypted_links(group, tls):
    a, b = await group.pair(tls=tls)
    payload = bytes(range(256)) * 8192
    assert a.links.send("b", Lane.BULK, Append(1, 2, 1, 0, 1), (payload,))
    assert b.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    await b.until(lambda: bool(b.messages))
    await a.until(lambda: bool(a.messages))
    assert b.messages == [(a.me, Append(1, 2, 1, 0, 1), payload)]


async def test_a_node_without_tls_is_kept_out(group, tls):
    a, b = await group.pair(tls=tls)
    plain = await group.start("c", {"a": a.links.address}, limits=LinkLimits(dial_timeout_s=0.05))
    await plain.until(lambda: bool(plain.dial_errors))
    assert not plain.connected
    assert b.links.send("a", Lane.CONTROL, Heartbeat(1, 1))
    await a.until(lambda: bool(a.messages))
    assert {peer.node_id for peer in a.connected} == {"b"}


async def test_an_untrusted_certificate_is_kept_out(group, tls, caplog):
    a = await group.start("a", tls=tls)
    b = await group.start("b", {"a": a.links.address}, tls=PeerTls(tls.server, TlsContext.for_client(TlsFiles())))
    await b.until(lambda: bool(b.dial_errors))
    assert isinstance(b.dial_errors[0], ssl.SSLError)
    assert not b.connected
    assert "its certificate is refused here" in caplog.text


async def test_a_node_without_a_certificate_is_kept_out(group, tls):
    """Both ends show a certificate.

    The dialler learns of the refusal by an alert, after its own half of the handshake.
    """
    a = await group.start("a", tls=tls)
    bare = PeerTls(tls.server, TlsContext.for_client(TlsFiles(authority=PEM)))
    b = await group.start("b", {"a": a.links.address}, tls=bare)
    await b.until(lambda: bool(b.dial_errors))
    assert not b.connected
    assert not a.connected


async def test_with_tls_peer_names_a_certificate_must_name_its_node(group, tls, caplog):
    """The certificate of these tests names no node id."""
    bound = replace(tls, binds_names=True)
    a = await group.start("a", tls=bound)
    b = await group.start("b", {"a": a.links.address}, tls=tls)
    c = await group.start("c", {"a": a.links.address}, tls=bound)
    await b.until(lambda: bool(b.dial_errors))
    await c.until(lambda: bool(c.dial_errors))
    assert not a.connected
    assert "one for node 'b' expected (tls_peer_names)" in caplog.text


async def test_nodes_whose_certificates_name_them_are_linked(group, tmp_path):
    authority = Authority("a test", timedelta(days=1))
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(authority.certificate)

    def certified(name: str) -> PeerTls:
        files = TlsFiles(tmp_path / f"{name}.pem", tmp_path / f"{name}-key.pem", trusted)
        authority.issue(name, ["127.0.0.1"]).write(files.certificate, files.key)
        server = TlsContext.for_server(files, ssl.CERT_REQUIRED)
        return PeerTls(server, TlsContext.for_client(files), binds_names=True)

    a, b = await group.pair({"tls": certified("a")}, {"tls": certified("b")})
    assert a.me in b.connected


def test_the_names_of_a_certificate_are_its_dns_names_and_common_name():
    described = {
        "subject": ((("organizationName", "x"),), (("commonName", "n0"),)),
        "subjectAltName": (("DNS", "n1"), ("IP Address", "127.0.0.1")),
    }
    assert list(certified_names(described)) == ["n1", "n0"]
    assert list(certified_names({"subject": ()})) == list(certified_names(None)) == []
