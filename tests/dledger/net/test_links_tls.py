"""With TLS on the peer port everything is as without, and who speaks no TLS is a stranger.

`loopback.pem` is a self-signed certificate for 127.0.0.1 and its key, good for a hundred years and for nothing else.
"""

import ssl
from pathlib import Path

import pytest

from dledger.core.messages import Append, Heartbeat
from dledger.net.settings import LinkLimits, PeerTls
from dledger.types import Lane

PEM = Path(__file__).with_name("loopback.pem")


@pytest.fixture
def tls() -> PeerTls:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(PEM)
    return PeerTls(server, ssl.create_default_context(cafile=str(PEM)))


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
    b = await group.start("b", {"a": a.links.address}, tls=PeerTls(tls.server, ssl.create_default_context()))
    await b.until(lambda: bool(b.dial_errors))
    assert isinstance(b.dial_errors[0], ssl.SSLError)
    assert not b.connected
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
