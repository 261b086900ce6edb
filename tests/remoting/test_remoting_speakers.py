"""The first bytes of a connection show the protocol of the other end, once enough of them have arrived."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.net.handshake import Handshake, Hello
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.frame import SerializeType
from dledger_remoting.speakers import ENOUGH_BYTES, Speaker, speaker_of

TLS_ALERT = bytes.fromhex("15030300020246")
"""Answer of OpenSSL to a first byte that is no TLS: alert 70, wrong version."""


def tls_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def greeting() -> bytes:
    """Return the first bytes that a node's peer port sends on each connection."""
    hello = Hello(1, "cluster", "group", 1 << 20, "node", "incarnation", "control", "localhost", 1)
    return Handshake.accept(hello, b"secret", bytes(range(32))).start()


REQUEST = RemotingCommand(RequestCode.HEART_BEAT, opaque=1)


@pytest.mark.parametrize(
    ("first", "speaker"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n", Speaker.HTTP),
        (b"<!DOCTYPE HTML>\n<html", Speaker.HTTP),
        (b"GET / HTTP/1.1\r\n", Speaker.HTTP),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Speaker.HTTP2),
        (bytes.fromhex("000006040000000000000400400000"), Speaker.HTTP2),
        (TLS_ALERT, Speaker.TLS),
        (tls_hello(), Speaker.TLS),
        (greeting(), Speaker.PEER),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Speaker.SSH),
        (b"-ERR unknown command\r\n", Speaker.OTHER),
        (bytes(ENOUGH_BYTES), Speaker.OTHER),
        (encode_command(REQUEST), Speaker.REMOTING),
        (encode_command(make_response(REQUEST, 0)), Speaker.REMOTING),
    ],
)
def test_a_protocol_is_told_from_its_first_bytes_and_never_mistaken_earlier(first, speaker):
    assert speaker_of(first) is speaker
    for length in range(len(first)):
        assert speaker_of(first[:length]) in (None, speaker)


@given(st.integers(0, 400), st.text(max_size=40), st.binary(max_size=40), st.sampled_from(SerializeType))
def test_every_answer_of_a_broker_is_recognised_as_remoting(code, remark, body, serialize_type):
    request = RemotingCommand(RequestCode.HEART_BEAT, opaque=7, serialize_type=serialize_type)
    assert speaker_of(encode_command(make_response(request, code, remark, body=body))) is Speaker.REMOTING


@given(st.binary(min_size=ENOUGH_BYTES, max_size=40))
def test_there_is_always_a_verdict_once_enough_has_come(first):
    assert isinstance(speaker_of(first), Speaker)
