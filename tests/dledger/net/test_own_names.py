"""A process may publish its own name after its start, and other names may have several addresses."""

import asyncio
import logging
import socket
import threading

import pytest

from dledger.errors import ConfigError
from dledger_base import addresses, names
from dledger_base.addresses import connect_to
from dledger_base.names import first_address

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.7", 0))]


async def test_a_node_waits_for_its_own_name_and_warns_once(monkeypatch, caplog):
    failures = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 3
    monkeypatch.setattr(names, "RETRY_S", 0.001)

    def look_up(host, *_, **__):
        assert host == "mq-0.mq"
        if failures:
            raise failures.pop()
        return FOUND

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert await first_address("advertised_host", "mq-0.mq", socket.AF_INET) == "127.0.0.7"
    assert failures == []
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=waits_for_name key=advertised_host host='mq-0.mq'" in line
    assert "it has no IPv4 address yet: Name or service not known" in line


async def test_names_are_looked_up_in_daemon_threads(monkeypatch):
    answered, asked = threading.Event(), []

    def look_up(*_, **__):
        asked.append(threading.current_thread())
        answered.wait()
        return FOUND

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    answered.set()
    await first_address("host", "mq-0.mq")
    assert [thread.daemon for thread in asked] == [True]


@pytest.mark.parametrize(
    ("host", "families"), [("127.0.0.1", [socket.AF_INET]), ("0.0.0.0", [socket.AF_INET]), ("::1", [])]
)
async def test_an_ip_address_is_used_without_a_lookup(host, families, monkeypatch):
    monkeypatch.delattr(socket, "getaddrinfo")
    assert await first_address("host", host, *families) == host


@pytest.mark.parametrize("host", ["::1", "300.1.1.1", "10.1", "http://mq", "a b", "a..b", ""])
async def test_a_host_that_cannot_be_ipv4_is_refused_with_its_key(host):
    with pytest.raises(ConfigError, match="advertised_host = "):
        await first_address("advertised_host", host, socket.AF_INET)


async def test_connecting_skips_an_address_that_refuses():
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.9", "127.0.0.1")]
    transport, _ = await connect_to(asyncio.Protocol, "two", found, None)
    assert transport.get_extra_info("peername")[0] == "127.0.0.1"
    transport.close()
    server.close()


@pytest.mark.parametrize("turns", range(12))
async def test_an_attempt_to_connect_that_is_cut_off_leaves_no_socket_open(turns, monkeypatch):
    opened, open_socket = [], addresses._open_socket

    async def note(address):
        opened.append(await open_socket(address))
        return opened[-1]

    monkeypatch.setattr(addresses, "_open_socket", note)
    monkeypatch.setattr(addresses, "NEXT_ADDRESS_SECONDS", 0)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", server.sockets[0].getsockname())] * 3
    connecting = asyncio.create_task(connect_to(asyncio.Protocol, "two", found, None))
    for turn in range(turns + 6):
        if turn >= turns:
            connecting.cancel()
        await asyncio.sleep(0)
    if not connecting.cancelled():
        connecting.result()[0].abort()
        await asyncio.sleep(0)
    assert [one.fileno() for one in opened] == [-1] * len(opened)
    server.close()
