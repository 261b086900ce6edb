"""The TCP transport between the nodes of a group.

Every node listens on its peer port and dials every other node twice.  It sends on what it dialled and receives on what
it accepted, so each direction between two nodes stands or falls alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from dledger.consensus.messages import Message, MessageCodec
from dledger.errors import ConfigError
from dledger.invariants import invariant
from dledger.net.connection import PeerConnection
from dledger.net.dialling import DialContext, DialledPeer
from dledger.net.errors import PeerError, PeerProtocolError
from dledger.net.eviction import oldest_of_busiest_host
from dledger.net.frames import Frame, FrameKind, decode_header, encode_head
from dledger.net.handshake import MIN_SECRET_BYTES, NONCE_BYTES, PROTOCOL_VERSION, Handshake, Hello
from dledger.net.settings import Address, LinkCounters, LinkLimits, PeerTls, format_address
from dledger.net.tls import handshake_failure
from dledger.net.transport import Buffer, Receiver
from dledger.types import NATIVE_ENGINE, Lane, ReplicaId

COMPLAINT_INTERVAL_S = 60.0
"""What goes wrong again and again is logged so often."""
MAX_COMPLAINTS = 256

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_channel = msgspec.msgpack.Decoder(int).decode


class ChannelListener(Protocol):
    """Receives what arrives on one data channel."""

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Bytes that the peer gave to `send_data` for this channel."""

    def on_lost(self, node_id: str) -> None:
        """Bytes on their way to or from the node may be lost.  May be called more often than that happens."""


class Links:
    """All links of one node; a `dledger.net.transport.Transport`.

    `bind` is where the node listens (port 0: any free one, see `address`), `advertise` the address others can dial,
    which a node says of itself; it defaults to the bound address.  `peers` are the dial addresses of the other nodes
    by node id.  A node that no configuration names may dial in if it knows the secret (a learner that joins): it is
    then dialled at the address it says of itself, until it is gone in both directions.  `codec` is that of the engine
    whose messages are carried, `engine` its name.

    A connection is refused, with one log line that names what was found and expected, if the other end has another
    secret, cluster, group, engine, `segment_bytes` or protocol version, or is not the node that was dialled.  Whatever
    the reason, it is dialled again, after a pause that grows from 20 to 500 ms and ends as soon as the peer dials in.

    All callbacks run on the event loop, and none after `stop` was called.  Raises `ConfigError` if the secret is
    shorter than 16 bytes.
    """

    def __init__(
        self,
        me: ReplicaId,
        *,
        cluster: str,
        group: str,
        segment_bytes: int,
        secret: bytes,
        bind: Address,
        peers: Mapping[str, Address],
        receiver: Receiver,
        codec: MessageCodec,
        engine: str = NATIVE_ENGINE,
        advertise: Address | None = None,
        tls: PeerTls | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the group's secret has {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed: generate one"
            )
        self.counters = LinkCounters()
        self._me = me
        self._cluster = cluster
        self._group = group
        self._segment_bytes = segment_bytes
        self._engine = engine
        self._secret = secret
        self._bind = bind
        self._advertise = advertise
        self._receiver = receiver
        self._encode_message = codec.encode
        self._decode_message = codec.decode
        self._tls = tls
        self._limits = limits or LinkLimits()
        self._configured = {node_id: address for node_id, address in peers.items() if node_id != me.node_id}
        self._peers: dict[str, DialledPeer] = {}
        self._accepted: dict[tuple[str, Lane], PeerConnection] = {}
        self._strangers: dict[PeerConnection, asyncio.TimerHandle] = {}
        """Who has not proven itself, in the order of coming, and what ends its time."""
        self._channels: dict[int, ChannelListener] = {}
        self._context: DialContext | None = None
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._complaints: dict[str, float] = {}

    @property
    def address(self) -> Address:
        """Where this node listens; known once it is started."""
        invariant(self._server is not None and self._server.sockets, "links are started")
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """Listen, and begin to dial.  Raises `ConfigError` if the bind address cannot be used."""
        invariant(self._server is None and not self._stopped, "links are started once")
        host, port = self._bind
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept,
                host,
                port,
                ssl=self._tls.server.accepting if self._tls is not None else None,
                ssl_handshake_timeout=self._limits.handshake_timeout_s if self._tls is not None else None,
                start_serving=False,
            )
            self._context = self._make_context()
            await self._server.start_serving()
        except OSError as error:
            if self._server is not None:
                self._server.close()
            raise ConfigError(
                f"cannot listen for peers on {format_address(self._bind)}: {error.strerror or error}; "
                "stop what uses the address, or configure another peer address"
            ) from error
        for node_id, address in self._configured.items():
            self._dial(node_id, address, learned=False)

    async def stop(self) -> None:
        """Close everything; what is queued is lost.  May be called twice."""
        if self._stopped or self._server is None:
            self._stopped = True
            return
        self._stopped = True
        self._server.close()
        accepted = [*self._accepted.values(), *self._strangers]
        for connection in accepted:
            connection.end()
        for peer in self._peers.values():
            await peer.close()
        for connection in accepted:
            await connection.wait_closed()
        self._peers.clear()

    def send(self, to: str, lane: Lane, message: Message, payload: Sequence[Buffer] = ()) -> bool:
        """See `Transport.send`."""
        peer = self._peers.get(to)
        if peer is None or peer.peer is None:
            return False
        head = encode_head(FrameKind.MESSAGE, self._encode_message(message), sum(map(len, payload)))
        return peer.send(lane, head, payload)

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """See `Transport.send_data`."""
        peer = self._peers.get(to)
        if peer is None or peer.peer is None:
            return False
        return peer.send(Lane.BULK, encode_head(FrameKind.DATA, _encode(channel), sum(map(len, data))), data)

    def queued_bytes(self, to: str, lane: Lane) -> int:
        """See `Transport.queued_bytes`."""
        peer = self._peers.get(to)
        return 0 if peer is None else peer.queued_bytes(lane)

    def open_channel(self, number: int, listener: ChannelListener) -> None:
        """Give the data of a channel to `listener` instead of to the receiver."""
        invariant(number not in self._channels, "a channel has one listener", number=number)
        self._channels[number] = listener

    def can_exchange(self, node_id: str) -> bool:
        """Whether data can be sent to the node and it can send data back."""
        peer = self._peers.get(node_id)
        accepted = self._accepted.get((node_id, Lane.BULK))
        return peer is not None and peer.peer is not None and accepted is not None and accepted.ready

    def on_open(self, connection: PeerConnection) -> None:
        """See `ConnectionOwner`: an accepted connection has proven itself."""
        self._forget_stranger(connection)
        hello, sender = connection.hello, connection.peer
        assert hello is not None
        assert sender is not None
        for lane in Lane:
            older = self._accepted.get((sender.node_id, lane))
            if older is not None and (lane is hello.lane or older.peer != sender):
                self._forget_accepted(older)
                older.end()
                self._complain(
                    f"{sender} dialled in anew while {older.peer} was connected: it came back from a crash or a lost "
                    "network, or two processes share the node id, which they must not"
                )
        self._accepted[sender.node_id, hello.lane] = connection
        peer = self._peers.get(sender.node_id)
        address = (hello.host, hello.port)
        if peer is not None:
            if peer.learned:
                peer.set_address(address)
            peer.hurry()
        elif sum(peer.learned for peer in self._peers.values()) < self._limits.max_learned_peers:
            _log.info(
                "event=peer_joined peer=%s address=%s reason='it is not in the configuration'",
                sender,
                format_address(address),
            )
            self._dial(sender.node_id, address, learned=True)
        else:
            self._complain(
                f"{sender} dialled in and will not be sent to: {self._limits.max_learned_peers} nodes outside the "
                "configuration are dialled already, which is the limit"
            )

    def on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """See `ConnectionOwner`: a frame on an accepted connection."""
        if self._stopped:
            return
        sender = connection.peer
        assert sender is not None
        kind = frame.kind
        if kind == FrameKind.READY:
            connection.ready = True
        elif not connection.ready:
            raise PeerProtocolError(f"{FrameKind(kind).name} found, READY expected after the handshake")
        elif kind == FrameKind.MESSAGE:
            self._receiver.on_message(sender, decode_header(frame, self._decode_message), frame.payload)
        elif kind == FrameKind.DATA:
            channel = decode_header(frame, _decode_channel)
            listener = self._channels.get(channel)
            if listener is not None:
                listener.on_data(sender, frame.payload)
            else:
                self._receiver.on_data(sender, channel, frame.payload)
        else:
            raise PeerProtocolError(f"{FrameKind(kind).name} found after the handshake")

    def on_closed(self, connection: PeerConnection, error: Exception | None) -> None:
        """See `ConnectionOwner`: an accepted connection is gone."""
        self._forget_stranger(connection)
        self._forget_accepted(connection)
        if isinstance(error, PeerError):
            who = connection.peer or f"a connection from {connection.remote_host}"
            self._complain(f"closed the link of {who}: {error}")

    def on_reachable(self, peer: ReplicaId) -> None:
        """See `DialListener`."""
        if not self._stopped:
            self._receiver.on_connected(peer)

    def on_unreachable(self, peer: ReplicaId) -> None:
        """See `DialListener`."""
        if not self._stopped:
            self._receiver.on_disconnected(peer)
            self._announce_loss(peer.node_id)

    def on_dial_failed(self, node_id: str, address: Address, error: Exception) -> None:
        """See `DialListener`."""
        said = handshake_failure(error) if self._tls is not None and isinstance(error, OSError) else None
        self._complain(f"cannot link to peer {node_id} at {format_address(address)}: {said or error}")
        peer = self._peers.get(node_id)
        accepted = any((node_id, lane) in self._accepted for lane in Lane)
        if peer is not None and peer.learned and not accepted and not self._stopped:
            # It knows where this node is, and dials in if it comes back; one that was removed never does.
            _log.info("event=peer_gone peer=%s reason='no configuration names it'", node_id)
            del self._peers[node_id]
            peer.give_up()

    def _make_context(self) -> DialContext:
        host, port = self._advertise or self.address
        hello = Hello(
            version=PROTOCOL_VERSION,
            cluster=self._cluster,
            group=self._group,
            segment_bytes=self._segment_bytes,
            node_id=self._me.node_id,
            incarnation=self._me.incarnation,
            lane=Lane.CONTROL,
            host=host,
            port=port,
            engine=self._engine,
        )
        return DialContext(
            hello=hello,
            secret=self._secret,
            tls=self._tls,
            limits=self._limits,
            counters=self.counters,
            make_nonce=_make_nonce,
            rng=random.Random(),
        )

    def _dial(self, node_id: str, address: Address, *, learned: bool) -> None:
        assert self._context is not None
        peer = self._peers[node_id] = DialledPeer(node_id, address, self._context, self, learned=learned)
        peer.start()

    def _accept(self) -> PeerConnection:
        assert self._context is not None
        handshake = Handshake.accept(self._context.hello, self._secret, _make_nonce())
        connection = PeerConnection(handshake, self, self.counters, self._limits.dead_peer_timeout_s)
        if self._stopped:
            connection.end()
            return connection
        if len(self._strangers) >= self._limits.max_strangers:
            self._make_room()
        self._strangers[connection] = asyncio.get_running_loop().call_later(
            self._limits.handshake_timeout_s, self._expire, connection
        )
        return connection

    def _make_room(self) -> None:
        """End the handshake of a stranger, for a node of the group may be the one that comes."""
        self.counters.refused_strangers += 1
        stranger = oldest_of_busiest_host(self._strangers, lambda connection: connection.remote_host)
        self._forget_stranger(stranger)
        stranger.end()
        self._complain(
            f"connections from {stranger.remote_host or 'hosts unknown yet'} are closed before their handshakes are "
            f"finished: there are {self._limits.max_strangers}, the limit, most of them from there"
        )

    def _expire(self, connection: PeerConnection) -> None:
        self._forget_stranger(connection)  # one whose TLS handshake failed is never told that it was closed
        self.counters.protocol_errors += 1
        timeout_s = self._limits.handshake_timeout_s
        connection.end(PeerProtocolError(f"its handshake was not finished within {timeout_s:g} s"))

    def _forget_stranger(self, connection: PeerConnection) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _forget_accepted(self, connection: PeerConnection) -> None:
        """Another connection may have taken its place: then there is nothing to forget."""
        if connection.hello is None:
            return
        key = (connection.hello.node_id, connection.hello.lane)
        if self._accepted.get(key) is connection:
            del self._accepted[key]
            if connection.hello.lane is Lane.BULK:
                self._announce_loss(connection.hello.node_id)

    def _announce_loss(self, node_id: str) -> None:
        if not self._stopped:
            for listener in self._channels.values():
                listener.on_lost(node_id)

    def _complain(self, what: str) -> None:
        """Log a warning unless the same was said within `COMPLAINT_INTERVAL_S`."""
        now = time.monotonic()
        said_at = self._complaints.get(what)
        if self._stopped or (said_at is not None and now - said_at < COMPLAINT_INTERVAL_S):
            return
        if len(self._complaints) >= MAX_COMPLAINTS:
            self._complaints.clear()
        self._complaints[what] = now
        _log.warning("node=%s event=link_trouble reason=%s", self._me.node_id, what)


def _make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)
