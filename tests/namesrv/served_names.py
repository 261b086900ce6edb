"""A name server in this process, its clients, and a table of routes without any server."""

import asyncio
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.records import Registered
from dledger_namesrv.server import NameServer
from dledger_namesrv.table import RouteTable
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import RegisterBrokerHeader, RouteHeader, RouteWatchHeader, encode_ext
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import TopicConfig

A, B, C = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"
PATIENCE_S = 10.0
"""Time limit of a test's waits, in seconds. No test waits this long unless it fails."""


def registration(topics: Iterable[str | TopicConfig], version: DataVersion | None = None) -> RegisterBrokerBody:
    """Return the registration of these topics, which have four queues unless they say otherwise."""
    configs = [TopicConfig(topic, 4, 4) if isinstance(topic, str) else topic for topic in topics]
    table = {config.topic_name: config for config in configs}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, version or DataVersion(1, 1, 1)))


class Registry:
    """Table with short calls for the actions of brokers."""

    def __init__(self, **options):
        self.table = RouteTable(**options)
        self.counter = 0

    def register(
        self, broker_id, address, *, term=1, topics=("T1", "TBW102"), now=0, connection=1, timeout=None,
        name="broker-0", cluster="C", counter=None, **header,
    ) -> Registered:  # fmt: skip
        self.counter = self.counter + 1 if counter is None else counter
        return self.table.register(
            RegisterBrokerHeader(name, address, cluster, f"{address}-ha", broker_id, timeout, **header),
            registration(topics, DataVersion(term, 0, self.counter)),
            now_ms=now,
            connection=connection,
        )

    def members(self, name="broker-0"):
        return self.table.members(name)

    def addresses(self, topic="T1"):
        route = self.table.route(topic)
        assert route is not None
        return {data.broker_name: data.broker_addrs for data in route.broker_datas}


class Client:
    """Connection that sends a request and reads its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()
        self.opaque = 0
        self.credentials: Credentials | None = None
        """Credentials that sign its requests."""

    def send(self, code, header=None, *, body=b"", version=479, flag=0, serialize_type=0) -> int:
        self.opaque += 1
        ext = {} if header is None else encode_ext(header)
        if self.credentials is not None:
            ext = signed(ext, body, self.credentials)
        command = RemotingCommand(
            code, self.opaque, flag, version=version, ext=ext, body=body, serialize_type=serialize_type
        )
        self.writer.write(encode_command(command))
        return self.opaque

    async def receive(self) -> RemotingCommand:
        async with asyncio.timeout(PATIENCE_S):
            while (frame := self.decoder.next_frame()) is None:
                data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection"
                self.decoder.receive_data(data)
        return decode_command(frame)

    async def call(self, code, header=None, **options) -> RemotingCommand:
        opaque = self.send(code, header, **options)
        answer = await self.receive()
        assert answer.opaque == opaque
        return answer

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True

    async def refusal(self, code, header=None, **options) -> tuple[int, str]:
        """Return the code of the answer, and its remark."""
        answer = await self.call(code, header, **options)
        return answer.code, answer.remark or ""

    async def route(self, topic="T1", **options) -> RemotingCommand:
        return await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic), **options)

    def watch(self, topics: str, version: int) -> int:
        """Ask for the next change of topics, which may take a minute, and return the request's number."""
        return self.send(RequestCode.DLEDGER_ROUTE_WATCH, RouteWatchHeader(topics, version, 60_000))

    async def register(
        self, broker_id=0, address=A, *, term=1, topics=("T1", "TBW102"), name="broker-0", cluster="C", ha="", **header
    ) -> RemotingCommand:
        topics = [*topics]
        return await self.call(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerHeader(name, address, cluster, ha or f"{address}-ha", broker_id, **header),
            body=encode_registration(registration(topics, DataVersion(term, 0, len(topics)))),
        )


class SlowDisk:
    """Disk that, after `begin`, holds the next change of a file after its rename, until `go_on` is set."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()
        self.go_on = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._sync = os.fsync
        self._is_slow = False

    def begin(self) -> None:
        self._is_slow = True

    def fsync(self, descriptor: int) -> None:
        self._sync(descriptor)
        if self._is_slow and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._is_slow = False
            self._loop.call_soon_threadsafe(self.writing.set)
            self.go_on.wait(PATIENCE_S)


async def is_alone(server: NameServer) -> None:
    """Return once the server has noticed that all clients but one are gone."""
    async with asyncio.timeout(PATIENCE_S):
        while server.connection_count > 1:  # noqa: ASYNC110 -- there is no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(data: Path, **options):
    server = NameServer(NameServerConfig(port=0, data=data, **options))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: NameServer, limit: int = 1 << 16, host: str = "127.0.0.1"):
    """Connect a client to one of this machine's addresses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=limit, local_addr=(host, 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
