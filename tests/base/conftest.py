"""Ports with a doorman, on both event loops, and certificates for them."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import uvloop

from dledger_base.doorman import Door
from dledger_base.issuing import Authority
from dledger_base.tls import TlsContext, TlsFiles


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on both event loops: brokers use uvloop, name servers asyncio's own."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Echo(asyncio.Protocol):
    """Protocol that echoes its input and records the events of its connection."""

    def __init__(self, port: "Port") -> None:
        self._port = port
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport):
        self.transport = transport
        self._port.open.add(self)

    def data_received(self, data):
        self._port.received.append(data)
        self.transport.write(data)

    def connection_lost(self, exc):
        self._port.open.discard(self)
        self._port.lost.set()


class Port:
    """Port with a doorman."""

    def __init__(self) -> None:
        self.open: set[Echo] = set()
        self.received: list[bytes] = []
        self.lost = asyncio.Event()
        self.door: Door
        self.number = 0


class Certificates:
    """Files of an authority, and of a certificate for 127.0.0.1 signed by that authority."""

    def __init__(self, folder) -> None:
        self.authority = Authority("a test", timedelta(days=1))
        self.files = TlsFiles(folder / "cert.pem", folder / "key.pem")
        self.trusted = folder / "ca.pem"
        self.trusted.write_bytes(self.authority.certificate)
        self.replace()

    def replace(self, **options) -> None:
        self.authority.issue("127.0.0.1", ["127.0.0.1"], **options).write(self.files.certificate, self.files.key)

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.trusted))


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path)


@pytest.fixture
def serving(certificates):
    @asynccontextmanager
    async def serve(*, takes_plain=False, max_connections=100, silence_s=600.0, context=None):
        port = Port()
        tls = context or TlsContext.for_server(certificates.files)
        port.door = Door(
            tls,
            takes_plain=takes_plain,
            max_connections=max_connections,
            open_connections=port.open.__len__,
            silence_s=silence_s,
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: port.door.doorman(lambda: Echo(port)), "127.0.0.1", 0)
        port.number = server.sockets[0].getsockname()[1]
        try:
            yield port
        finally:
            port.door.close()
            for connection in list(port.open):
                connection.transport.abort()
            server.close()

    return serve
