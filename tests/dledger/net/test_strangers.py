"""A server at a peer's address that is no peer is reported, in one line and within two seconds."""

import asyncio
import re
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dledger.net import dialling
from dledger.net.frames import FrameKind, encode_head
from dledger.net.settings import LinkLimits
from dledger.net.strangers import QUESTION, protocol_of
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.speakers import Speaker, speaker_of

SOON = LinkLimits(dial_timeout_s=0.05, redial_min_s=0.01, redial_max_s=0.02)
ALERT = bytes.fromhex("15030300020246")
PEM = Path(__file__).parent / "loopback.pem"


@asynccontextmanager
async def listening(answer, **options):
    """Run a foreign server. Yield its address and the bytes that each connection has sent."""
    said = []

    async def serve(reader, writer):
        got = bytearray()
        said.append(got)
        try:
            while data := await reader.read(1000):
                got += data
                if reply := answer(bytes(got)):
                    writer.write(reply)
                    break
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    async with server:
        yield server.sockets[0].getsockname(), said


def http(got):
    return b"HTTP/1.1 400 Bad Request\r\n\r\n" if b"\n" in got else b""


def remoting(got):
    decoder = FrameDecoder()
    decoder.receive_data(got)
    frame = decoder.next_frame()
    if frame is None:
        return b""
    return encode_command(make_response(decode_command(frame), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no"))


def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


@pytest.mark.parametrize(
    ("answer", "options", "named"),
    [
        (http, {}, "^it speaks HTTP, which no peer does$"),
        (remoting, {}, "^it speaks RocketMQ's protocol .*one above its client port"),
        (lambda _: ALERT, {}, "^it speaks TLS, which no peer does$"),
        (lambda _: b"", {"ssl": tls}, "^it says nothing, and closes the connection .* as a TLS port does$"),
        (lambda _: b"", {}, r"^it takes connections and says nothing: no answer within 0\.05 s$"),
    ],
)
async def test_a_stranger_at_a_peers_address_is_asked_once_for_its_protocol(
    group, answer, options, named, caplog, monkeypatch
):
    monkeypatch.setattr(dialling, "_QUESTION_TIMEOUT_S", 0.05 if "says nothing: no answer" in named else 20)
    made = {name: make() for name, make in options.items()}
    async with listening(answer, **made) as (address, said):
        node = await group.start("a", {"b": address}, limits=SOON)
        await node.until(lambda: sum(bool(re.search(named, str(error))) for error in node.dial_errors) >= 4)
        asked = [got for got in said if got]
        assert [bytes(got) for got in asked] == ([] if options else [QUESTION])
        told = [record.message.partition(f"{address[1]}: ")[2] for record in caplog.records]
        assert sum(bool(re.search(named, text)) for text in told) == 1


async def test_a_silent_peer_that_was_linked_before_is_not_asked_for_its_protocol(group):
    a, b = await group.pair(limits=SOON)
    address = b.links.address
    await b.links.stop()
    await a.until(lambda: not a.connected)
    server = None
    said = []

    async def serve(reader, _writer):
        said.append(await reader.read(1000))

    server = await asyncio.start_server(serve, *address)
    async with server:
        seen = len(a.dial_errors)
        await a.until(lambda: sum("no answer" in str(error) for error in a.dial_errors[seen:]) >= 3)
    assert {str(error) for error in a.dial_errors[seen:] if "answer" in str(error)} == {"no answer within 0.05 s"}
    assert not any(said)


@pytest.mark.parametrize(
    ("first", "named"),
    [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (QUESTION, "RocketMQ's protocol"), (b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2")],
)
async def test_a_client_that_dials_a_peer_port_by_mistake_is_named(group, first, named, caplog):
    node = await group.start("a")
    reader, writer = await asyncio.open_connection(*node.links.address)
    writer.write(first)
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    [line] = [record.message for record in caplog.records if "closed a connection" in record.message]
    assert f"it speaks {named}" in line


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (ALERT, "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (bytes.fromhex("000006040000000000000400400000"), "HTTP/2 or gRPC"),
        (b"<!DOCTYPE HTML>", "HTTP"),
        (encode_head(FrameKind.CHALLENGE, b"\x92\x01\xc4\x20" + bytes(32)), None),
        (encode_head(FrameKind.REFUSED, b"\x91\xa0"), None),
        (b"", None),
        (bytes(16), None),
        (b"-ERR unknown command", None),
    ],
)
def test_a_strangers_protocol_is_told_from_its_first_bytes(first, protocol):
    assert protocol_of(first) == protocol


def test_the_protocol_question_is_a_remoting_frame_with_line_ends():
    assert speaker_of(QUESTION) is Speaker.REMOTING
    assert b"\r\n\r\n" in QUESTION
    assert protocol_of(QUESTION).startswith("RocketMQ")
