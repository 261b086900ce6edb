"""Connection of a node to a name server: requests one at a time, and what is said there that no name server says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dledger.net.tls import TlsContext, handshake_failure
from dledger_broker.addresses import Address
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import ProtocolError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.speakers import CLOSES_UNHEARD, Speaker, speaker_of

READ_BYTES: Final = 64 << 10


class NameServerConnection:
    """One request at a time over a stream; each waits `timeout_s` for its answer. `on_lost` is called when the name
    server closes it.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timeout_s: float,
        on_lost: Callable[[], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._opaque = 0
        self._answer: asyncio.Future[RemotingCommand] | None = None
        self._lost: Exception | None = None
        self._receiving = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def open(
        cls,
        address: Address,
        timeout_s: float,
        on_lost: Callable[[], None],
        credentials: Credentials | None = None,
        tls: TlsContext | None = None,
    ) -> NameServerConnection:
        """Connect, over TLS with `tls`; requests are signed for the account of `credentials`.

        Raises OSError, TimeoutError.
        """
        context = None if tls is None else tls.context
        try:
            async with asyncio.timeout(timeout_s):
                streams = await asyncio.open_connection(address.host, address.port, ssl=context)
                return cls(*streams, timeout_s, on_lost, credentials)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {timeout_s:g} s") from error
        except OSError as error:
            said = None if tls is None else handshake_failure(error)
            if said is None:
                raise
            raise ConnectionError(said) from error

    async def call(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its answer. Raises OSError, TimeoutError, `ProtocolError`."""
        if self._lost is not None:
            raise self._lost
        self._opaque += 1
        request.opaque = self._opaque
        if self._credentials is not None:
            request.ext = signed(request.ext, request.body, self._credentials)
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
        heard = False
        try:
            while data := await self._reader.read(READ_BYTES):
                heard = True
                if first is not None and (speaker := speaker_of(first := first + data)) is not None:
                    if speaker is not Speaker.REMOTING:
                        hint = "; if it is one, tls_namesrv_ca_file is missing" if speaker is Speaker.TLS else ""
                        raise ProtocolError(f"{speaker.value} answered there, which is no name server{hint}")
                    first = None
                decoder.receive_data(data)
                while (frame := decoder.next_frame()) is not None:
                    self._take(decode_command(frame))
            self._lost = ConnectionResetError("the name server closed the connection" if heard else CLOSES_UNHEARD)
        except ConnectionResetError as error:
            self._lost = error if heard else ConnectionResetError(CLOSES_UNHEARD)
        except (OSError, ProtocolError) as error:
            self._lost = error
        except Exception as error:  # whoever waits for an answer learns of it, and logs it
            self._lost = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost)
        self._on_lost()

    def _take(self, response: RemotingCommand) -> None:
        expected = response.is_response and response.opaque == self._opaque
        if expected and self._answer is not None and not self._answer.done():
            self._answer.set_result(response)

    def close(self) -> None:
        """End it; nobody is told."""
        self._receiving.cancel()
        self._writer.close()
