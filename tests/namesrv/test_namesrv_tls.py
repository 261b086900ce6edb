"""A name server's port speaks TLS if its configuration says so."""

import asyncio
import logging
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta

import pytest
from served_names import Client, serving

from dledger_base.issuing import Authority
from dledger_namesrv.config import ConfigError, build_config
from dledger_namesrv.connection import Connection
from dledger_namesrv.http import NameServerCollector
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response

AUTHORITY = Authority("a test", timedelta(days=1))


@pytest.fixture
def files(tmp_path):
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    return {"tls_cert_file": tmp_path / "cert.pem", "tls_key_file": tmp_path / "key.pem"}


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=AUTHORITY.certificate.decode())


@asynccontextmanager
async def connect(server, *, tls):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting() if tls else None)
    yield Client(reader, writer)
    writer.close()


async def is_answered(client):
    return (await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0


async def test_an_enforcing_name_server_answers_over_tls_alone(tmp_path, files, caplog):
    async with serving(tmp_path / "data", tls="enforcing", **files) as server:
        async with connect(server, tls=True) as client:
            assert await is_answered(client)
            assert server.connection_count == 1
        async with connect(server, tls=False) as plain:
            plain.send(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert (await plain.reader.read())[:2] == b"\x15\x03"
        assert (server.door_counters.handshakes, server.door_counters.refused_plain) == (1, 1)
        shown = {family.name: family.samples[0].value for family in NameServerCollector(server).collect()}
        assert shown["dledger_namesrv_tls_handshakes"] == 1
        assert shown["dledger_namesrv_tls_certificate_ends_seconds"] > 0
    assert "it speaks without TLS" in caplog.text


async def test_a_permissive_name_server_answers_everybody(tmp_path, files):
    async with serving(tmp_path / "data", tls="permissive", **files) as server:
        for tls in (True, False):
            async with connect(server, tls=tls) as client:
                assert await is_answered(client)


async def test_a_plain_name_server_says_why_tls_is_refused(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with serving(tmp_path / "data") as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(server, tls=True).__aenter__()
    assert "it speaks TLS, which is off on this port" in caplog.text


def test_a_certificate_is_asked_for():
    with pytest.raises(ConfigError, match="tls_cert_file is missing while tls = 'enforcing'"):
        build_config({"tls": "enforcing"})


def say_and_leave(port, frame):
    """Send one frame over TLS, and close at once."""
    with trusting().wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1") as client:
        client.sendall(frame)
        client.setblocking(False)
        with suppress(ssl.SSLError):
            client.unwrap()


async def test_requests_of_clients_that_close_at_once_are_handled(tmp_path, files, monkeypatch):
    handled = []

    def handle(request, _):
        handled.append(request.opaque)
        return make_response(request, 0)

    async with asyncio.timeout(60), serving(tmp_path / "data", tls="enforcing", **files) as server:
        monkeypatch.setattr(server, "handle", handle)
        for number in range(20):
            frame = encode_command(RemotingCommand(206, opaque=number, flag=FLAG_ONEWAY))
            await asyncio.to_thread(say_and_leave, server.port, frame)
        while len(handled) < 20 or server.connection_count:  # noqa: ASYNC110 -- there is no event
            await asyncio.sleep(0)
        assert handled == list(range(20))


async def test_a_stopped_name_server_admits_no_connection(tmp_path, files):
    async with serving(tmp_path / "data", tls="enforcing", **files) as server:
        pass
    assert not server.admit(Connection(server, 1))
    assert server.connection_count == 0


async def test_a_broker_has_its_handshake_done_while_clients_fill_the_port(tmp_path, files):
    """A broker has room during its handshake as it has afterwards."""
    async with serving(tmp_path / "data", tls="enforcing", max_connections=2, **files) as server:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                client = await stack.enter_async_context(connect(server, tls=True))
                assert await is_answered(client)
            broker = await stack.enter_async_context(connect(server, tls=False))
            await stack.enter_async_context(connect(server, tls=False))
            await broker.writer.start_tls(trusting(), server_hostname="127.0.0.1")
            assert (await broker.register()).code == 0
