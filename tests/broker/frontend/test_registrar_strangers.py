"""A broker's log names, in one line, a server at a name server's address that is no name server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from broker_in_process import until
from test_registrar import FakeNameServer, Setup, servers

from dledger_broker.frontend import registration
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder

__all__ = ["servers"]


@asynccontextmanager
async def listening(answer):
    async def serve(reader, writer):
        while data := await reader.read(1 << 16):
            if not (said := answer(data)):
                break
            writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        stranger = FakeNameServer()
        stranger.port = server.sockets[0].getsockname()[1]
        yield stranger


def refusal(data):
    decoder = FrameDecoder()
    decoder.receive_data(data)
    request = decode_command(decoder.next_frame())
    return encode_command(make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported"))


def complaints(caplog):
    return [record.message for record in caplog.records if "namesrv_unreachable" in record.message]


async def first_complaint(caplog):
    await until(lambda: complaints(caplog))
    return complaints(caplog)[0]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda _: b"HTTP/1.0 400 Bad Request\r\n\r\n", "an HTTP server answered there"),
        (lambda _: bytes.fromhex("15030300020246"), "a TLS server answered there"),
        (lambda _: bytes.fromhex("000000280100002492 01c420") + bytes(32), "the peer port of a node"),
        (lambda _: b"-ERR unknown command\r\n", "a server of another protocol answered there"),
        (refusal, "a broker answered there, which is no name server"),
        (lambda _: b"", "says nothing, and closes the connection when it is spoken to, as a TLS port does"),
    ],
)
async def test_a_stranger_at_a_name_servers_address_is_named_once(answer, named, caplog, monkeypatch):
    monkeypatch.setattr(registration, "RECONNECT_S", 0.001)
    async with listening(answer) as stranger:
        setup = Setup([stranger])
        assert named in await first_complaint(caplog)
        await asyncio.sleep(0.05)
        await setup.registrar.stop()
    assert len(complaints(caplog)) == 1


async def test_a_silent_name_server_is_logged_within_two_seconds_and_waited_for(servers, caplog, monkeypatch):
    assert registration.SILENT_S < 2
    monkeypatch.setattr(registration, "SILENT_S", 0.01)
    monkeypatch.setattr(registration, "REQUEST_TIMEOUT_S", 3_600.0)
    server = servers[0]
    server.answers.clear()
    setup = servers.setup(1)
    assert "it takes connections and says nothing" in await first_complaint(caplog)
    assert not setup.registrar.introduced
    server.answers.set()
    await server.registration()
    await setup.registered()
    assert len(complaints(caplog)) == 1
    caplog.clear()
    await server.stop()
    assert "closed the connection" in await first_complaint(caplog), "the next outage is told of too"
