"""One connection between two nodes: a handshake, then frames in one direction.

After the handshake only the dialler sends. A frame of the acceptor is then a protocol error.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, cast

from dledger.net.frames import MAX_FRAME_BYTES, PREFIX_BYTES, Frame, FrameReader
from dledger.net.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, Hello
from dledger.net.settings import LinkCounters
from dledger.net.strangers import QUESTION, TELLING_BYTES, protocol_of
from dledger.net.transport import AuthenticationError, Buffer, HelloRejectedError, PeerProtocolError
from dledger.types import ReplicaId

KEEPALIVE_PROBES = 3


class ConnectionOwner(Protocol):
    """Owner of a connection, which is notified of the connection's events."""

    def on_open(self, connection: PeerConnection) -> None:
        """Note that the handshake succeeded: `connection.hello` and `connection.peer` are set."""

    def on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """Take a frame after the handshake. A `PeerProtocolError` from here closes the connection."""

    def on_closed(self, connection: PeerConnection, error: Exception | None) -> None:
        """Note that the connection is gone, as the last call; `error` is the reason if it did not end normally."""


class PeerConnection(asyncio.BufferedProtocol):
    """Protocol of an accepted or a dialled connection."""

    def __init__(
        self,
        handshake: Handshake,
        owner: ConnectionOwner,
        counters: LinkCounters,
        dead_peer_timeout_s: float,
        *,
        binds_names: bool = False,
    ) -> None:
        self._binds_names = binds_names
        self.hello: Hello | None = None
        self.peer: ReplicaId | None = None
        self.ready = False
        """True once the other end can send on both of its lanes. Set by the owner of an accepted connection."""
        self.remote_host = ""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._owner = owner
        self._counters = counters
        self._dead_peer_timeout_s = dead_peer_timeout_s
        self._reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_ended = False
        self._error: Exception | None = None
        self._has_received = False

    @property
    def is_open(self) -> bool:
        """True if the handshake is done and nothing has ended the connection."""
        transport = self._transport
        return self.hello is not None and not self._is_ended and transport is not None and not transport.is_closing()

    @property
    def queued_bytes(self) -> int:
        """Number of bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, head: bytes, payload: Sequence[Buffer], frame_bytes: int) -> None:
        """Queue one frame of `frame_bytes`. The objects of `payload` are passed on without a copy.

        The connection must be open.
        """
        transport = self._transport
        assert transport is not None
        if payload:
            transport.writelines((head, *payload))
        else:
            transport.write(head)
        self._counters.bytes_out += frame_bytes
        self._counters.frames_out += 1

    def end(self, error: Exception | None = None) -> None:
        """Close at once; queued bytes are lost. `on_closed` follows with `error`."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Close a connection whose dialling was given up. `on_closed` may not follow.

        uvloop closes the transport of an abandoned attempt by itself and never notifies the protocol. The transport
        does not report that it is closing, raises when it is written to, and `connection_lost` is not called.
        """
        self.end()
        self._note_closed()

    def ask_stranger(self) -> bool:
        """Send a question to an other end that has sent nothing, to learn its protocol before it is given up.

        Returns False if that is not possible.
        """
        if self._has_received or self._is_ended or self._transport is None:
            return False
        self._write(QUESTION)
        return True

    async def wait_closed(self) -> None:
        """Wait until the connection is closed or abandoned. Returns at once if there never was a connection."""
        if self._transport is not None:
            await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and send the first bytes of the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        local, remote = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.remote_host = str(remote[0]) if remote else "?"
        if local == remote:
            # A local port without a listener may be given to the very connection that dials it. TCP then connects the
            # socket to itself, and while it is open the real owner of the port cannot bind.
            self.end(ConnectionRefusedError("nothing listens there"))
            return
        if self._is_ended:
            self._transport.abort()
            return
        tune_socket(transport.get_extra_info("socket"), self._dead_peer_timeout_s)
        if self._binds_names:
            self._handshake.bind(certified_names(transport.get_extra_info("peercert")))
        self._write(self._handshake.start())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows better what comes
        """Return the reader's buffer, which knows best what to expect."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle each complete frame; a protocol error ends the connection."""
        self._has_received = True
        self._reader.received(nbytes)
        try:
            while not self._is_ended and (frame := self._reader.next_frame()) is not None:
                if self.hello is None:
                    self._on_handshake_frame(frame)
                else:
                    self._counters.frames_in += 1
                    self._counters.bytes_in += PREFIX_BYTES + len(frame.header) + len(frame.payload)
                    self._owner.on_frame(self, frame)
        except PeerProtocolError as error:
            self._counters.protocol_errors += 1
            self.end(self._identify_stranger() or error)

    def eof_received(self) -> None:
        """Close the connection, because a half-closed one is of no use here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner that the connection is gone, and why."""
        error = self._error or self._identify_stranger() or exc
        self._is_ended = True
        self._note_closed()
        self._owner.on_closed(self, error)

    def _on_handshake_frame(self, frame: Frame) -> None:
        self._write(self._handshake.receive(frame))
        error, hello = self._handshake.error, self._handshake.peer
        if error is not None:
            if isinstance(error, AuthenticationError):
                self._counters.auth_failures += 1
            elif isinstance(error, HelloRejectedError):
                self._counters.rejected_hellos += 1
            else:
                self._counters.protocol_errors += 1
            self._is_ended = True
            self._error = error
            assert self._transport is not None
            self._transport.close()  # unlike abort, this still sends the refusal
        elif hello is not None:
            self.hello = hello
            self.peer = ReplicaId(hello.node_id, hello.incarnation)
            self._reader.max_frame_bytes = MAX_FRAME_BYTES
            self._owner.on_open(self)

    def _identify_stranger(self) -> PeerProtocolError | None:
        """Return an error if the first bytes show that the other end is not a node; None once a frame was read."""
        if self.hello is not None or self._handshake.has_begun:
            return None
        protocol = protocol_of(self._reader.unread(TELLING_BYTES))
        return None if protocol is None else PeerProtocolError(f"it speaks {protocol}, which no peer does")

    def _note_closed(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def certified_names(certificate: Mapping[str, Any] | None) -> Collection[str]:
    """Return the DNS names and the common name in a certificate, as `ssl` describes it. No certificate has no names."""
    if not certificate:
        return ()
    alternatives = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return dict.fromkeys((*alternatives, *common))


def tune_socket(sock: socket.socket | ssl.SSLSocket, dead_peer_timeout_s: float) -> None:
    """Set options of a socket: no delay for small frames, and keepalive.

    A dead peer is then detected in about `dead_peer_timeout_s`, as far as the platform can.
    """
    probe_s = max(1, round(dead_peer_timeout_s / KEEPALIVE_PROBES))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", probe_s),
        ("TCP_KEEPALIVE", probe_s),  # macOS's name for TCP_KEEPIDLE
        ("TCP_KEEPINTVL", probe_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", round(dead_peer_timeout_s * 1000)),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
