"""Connection of a node to a name server, with one request at a time. It detects servers that are not name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dledger_base.addresses import connect
from dledger_base.tls import TlsContext, handshake_failure
from dledger_broker.addresses import Address
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import ProtocolError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.speakers import CLOSES_UNHEARD, Speaker, speaker_of

READ_BYTES: Final = 64 << 10


class NameServerConnection:
    """Connection to a name server over a stream. A request waits at most `timeout_s` for its answer.

    `on_lost` is called when the connection fails: the name server closes it, or sends bytes that cannot be read.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timeout_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._opaque = 0
        self._answer: asyncio.Future[RemotingCommand] | None = None
        self._error: Exception | None = None
        self._receiving = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def open(
        cls,
        address: Address,
        timeout_s: float,
        on_lost: Callable[[], None],
        tls: TlsContext | None = None,
    ) -> NameServerConnection:
        """Connect, over TLS if `tls` is given. Raises OSError, TimeoutError."""
        context = None if tls is None else tls.context
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                reader = asyncio.StreamReader(loop=loop)
                streams = asyncio.StreamReaderProtocol(reader, loop=loop)
                transport, _ = await connect(lambda: streams, address.host, address.port, context)
                writer = asyncio.StreamWriter(transport, streams, reader, loop)
                return cls(reader, writer, timeout_s, on_lost)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {timeout_s:g} s") from error
        except OSError as error:
            failure = None if tls is None else handshake_failure(error)
            if failure is None:
                raise
            raise ConnectionError(failure) from error

    async def call(self, request: RemotingCommand, credentials: Credentials | None = None) -> RemotingCommand:
        """Send a request, signed with `credentials`, and wait for its answer.

        Each call gets the credentials, because the key file may change while the connection is open. Raises OSError,
        TimeoutError, `ProtocolError`.
        """
        if self._error is not None:
            raise self._error
        self._opaque += 1
        request.opaque = self._opaque
        if credentials is not None:
            request.ext = signed(request.ext, request.body, credentials)
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(encode_command(request))
                await self._writer.drain()
                return await self._answer
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from error

    async def _receive(self) -> None:
        decoder = FrameDecoder()
        first: bytes | None = b""
        has_received = False
        try:
            while data := await self._reader.read(READ_BYTES):
                has_received = True
                if first is not None and (speaker := speaker_of(first := first + data)) is not None:
                    if speaker is not Speaker.REMOTING:
                        hint = "; if it is one, tls_namesrv_ca_file is missing" if speaker is Speaker.TLS else ""
                        raise ProtocolError(f"{speaker.value} answered there, which is no name server{hint}")
                    first = None
                decoder.receive_data(data)
                while (frame := decoder.next_frame()) is not None:
                    self._deliver(decode_command(frame))
            self._error = ConnectionResetError(
                "the name server closed the connection" if has_received else CLOSES_UNHEARD
            )
        except ConnectionResetError as error:
            self._error = error if has_received else ConnectionResetError(CLOSES_UNHEARD)
        except (OSError, ProtocolError) as error:
            self._error = error
        except Exception as error:  # a caller that waits for an answer gets the error, and logs it
            self._error = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._error)
        self._on_lost()

    def _deliver(self, response: RemotingCommand) -> None:
        expected = response.is_response and response.opaque == self._opaque
        if expected and self._answer is not None and not self._answer.done():
            self._answer.set_result(response)

    def close(self) -> None:
        """Close the connection without calling `on_lost`."""
        self._receiving.cancel()
        self._writer.close()
