"""With TLS on the peer port everything is as without, and who speaks no TLS is a stranger.

`loopback.pem` is a self-signed certificate for 127.0.0.1 and its key, good for a hundred years and for nothing else.
"""

import ssl
from pathlib import Path

import pytest

from dledger.core.messages import Append, Heartbeat
from dledger.net.settings import LinkLimits, PeerTls
from dledger.net.tls import TlsContext, TlsFiles
from dledger.types import Lane

PEM = Path(__file__).with_name("loopback.pem")


@pytest.fixture
def tls(tmp_path: Path) -> PeerTls:
    files = TlsFiles(certificate=private(tmp_path), authority=PEM)
    return PeerTls(TlsContext.for_server(files, ssl.CERT_REQUIRED), TlsContext.for_client(files))


def private(tmp_path: Path) -> Path:
    """The certificate with its key, as a file that only its owner can read."""
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
    """Both ends show one: whoever dials first is told by an alert, after its own half of the handshake."""
    a = await group.start("a", tls=tls)
    bare = PeerTls(tls.server, TlsContext.for_client(TlsFiles(authority=PEM)))
    b = await group.start("b", {"a": a.links.address}, tls=bare)
    await b.until(lambda: bool(b.dial_errors))
    assert not b.connected
    assert not a.connected
