"""A name server in this process, and clients that speak to it."""

import asyncio
import os
import stat
import threading
from contextlib import asynccontextmanager
from pathlib import Path

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.server import NameServer
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import RegisterBrokerHeader, encode_ext
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import TopicConfig

A, B = "127.0.0.1:10911", "127.0.0.1:10921"
PATIENCE_S = 10.0
"""How long a test waits for what must come; nothing waits this long unless it fails."""


class Client:
    """One connection that sends a request and reads its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self.decoder = FrameDecoder()
        self.opaque = 0
        self.credentials: Credentials | None = None
        """What its requests are signed with."""

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

    async def register(
        self,
        broker_id=0,
        address=A,
        *,
        term=1,
        topics=("T1", "TBW102"),
        name="broker-0",
        cluster="C",
        ha="",
        **header,
    ) -> RemotingCommand:
        configs = {topic: TopicConfig(topic, 4, 4) for topic in topics}
        wrapper = TopicConfigSerializeWrapper(configs, DataVersion(term, 0, len(topics)))
        return await self.call(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerHeader(name, address, cluster, ha or f"{address}-ha", broker_id, **header),
            body=encode_registration(RegisterBrokerBody(wrapper)),
        )


class SlowDisk:
    """From `begin` on the first change of a file stops behind its rename, until `go_on` is set."""

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
    """Return once the server has seen that all clients but one are gone."""
    async with asyncio.timeout(PATIENCE_S):
        while server.connection_count > 1:  # noqa: ASYNC110 -- nothing tells of it
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
    """A client, on one of this machine's addresses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=limit, local_addr=(host, 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
