"""TCP transport between the nodes of a group.

Every node listens on its peer port and dials every other node twice. It sends on the connections that it dialled and
receives on those that it accepted. So each direction between two nodes fails independently.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from secrets import token_bytes
from typing import Protocol

import msgspec

from dledger.consensus.messages import Message, MessageCodec
from dledger.errors import ConfigError
from dledger.net.connection import PeerConnection
from dledger.net.dialling import DialContext, DialledPeer
from dledger.net.frames import Frame, FrameKind, decode_header, encode_head
from dledger.net.handshake import MIN_SECRET_BYTES, NONCE_BYTES, PROTOCOL_VERSION, Belonging, Handshake, Hello
from dledger.net.settings import Address, LinkCounters, LinkLimits, PeerTls, format_address
from dledger.net.transport import Buffer, HelloRejectedError, PeerError, PeerProtocolError, Receiver
from dledger.types import NATIVE_ENGINE, Lane, ReplicaId
from dledger_base.accepting import Port, Reserve
from dledger_base.doorman import Door
from dledger_base.eviction import Strangers
from dledger_base.invariants import invariant
from dledger_base.secret import GroupSecrets
from dledger_base.telling import Telling
from dledger_base.tls import handshake_failure

COMPLAINT_INTERVAL_S = 60.0
"""Minimum seconds before the same complaint is logged again."""
MAX_COMPLAINTS = 256
"""Maximum number of complaints that are remembered, so as not to repeat them."""

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_channel = msgspec.msgpack.Decoder(int).decode


class ChannelListener(Protocol):
    """Receiver of the data that arrives on one data channel."""

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Take bytes that the peer gave to `send_data` for this channel."""

    def on_lost(self, node_id: str) -> None:
        """Note that bytes on their way to or from the node may be lost.

        May be called more often than that happens.
        """


class Links:
    """All links of one node; a `dledger.net.transport.Transport`.

    `bind` is where the node listens (port 0: any free port, see `address`). `advertise` is the address in the node's
    own hello, which others can dial; by default it is the bound address. `peers` are the dial addresses of the other
    nodes by node id. `codec` belongs to the engine whose messages are carried, `engine` is its name. `belonging` judges
    which nodes are of the same group.

    A node that is not in the configuration, such as a joining learner, may dial in if it knows the secret. It is then
    dialled at the address in its hello, until it is gone in both directions.

    A connection is refused if the other end is not the dialled node. It is also refused if secret, cluster, group,
    group identity, engine, `segment_bytes` or protocol version differ. One log line then names what was found and
    expected. In any case the peer is dialled again after a pause. The pause grows from 20 to 500 ms, and ends as soon
    as the peer dials in.

    All callbacks run on the event loop, and none after `stop` was called. Raises `ConfigError` if the secret is shorter
    than 16 bytes.
    """

    def __init__(
        self,
        me: ReplicaId,
        *,
        cluster: str,
        group: str,
        segment_bytes: int,
        secret: bytes | GroupSecrets,
        bind: Address,
        peers: Mapping[str, Address],
        receiver: Receiver,
        codec: MessageCodec,
        engine: str = NATIVE_ENGINE,
        advertise: Address | None = None,
        tls: PeerTls | None = None,
        limits: LinkLimits | None = None,
        belonging: Belonging | None = None,
    ) -> None:
        secrets = GroupSecrets.of(secret)
        if (shortest := min(map(len, secrets.all))) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the group's secret has {shortest} bytes, at least {MIN_SECRET_BYTES} are needed: generate one"
            )
        self.counters = LinkCounters()
        self._me = me
        self._cluster = cluster
        self._group = group
        self._segment_bytes = segment_bytes
        self._engine = engine
        self._secrets = secrets
        self._bind = bind
        self._advertise = advertise
        self._receiver = receiver
        self._encode_message = codec.encode
        self._decode_message = codec.decode
        self._tls = tls
        self._limits = limits or LinkLimits()
        self._belonging = belonging or Belonging()
        self._configured = {node_id: address for node_id, address in peers.items() if node_id != me.node_id}
        self._peers: dict[str, DialledPeer] = {}
        self._accepted: dict[tuple[str, Lane], PeerConnection] = {}
        self._strangers: Strangers[PeerConnection] = Strangers()
        """Connections that have not proven themselves yet."""
        self._timers: dict[PeerConnection, asyncio.TimerHandle] = {}
        """Timers that end the connections in `_strangers`."""
        self._door: Door | None = None
        """The door at which connections wait for their TLS handshake."""
        self._channels: dict[int, ChannelListener] = {}
        self._context: DialContext | None = None
        self._port: Port | None = None
        self._stopped = False
        self._last_warned_at: dict[str, float] = {}
        self._stranger_log_limiter = Telling()
        """Lines about connections that have proven nothing."""
        self._dial_log_limiter = Telling()
        """Lines about dialled addresses, by the node that is expected there."""

    @property
    def address(self) -> Address:
        """Address where this node listens. Known once the links are started."""
        invariant(self._port is not None, "links are started")
        assert self._port is not None
        return self._port.address

    async def start(self) -> None:
        """Listen, and begin to dial. Raises `ConfigError` if the bind address cannot be used."""
        invariant(self._port is None and not self._stopped, "links are started once")
        host, port = self._bind
        if self._tls is not None:
            self._door = self._make_door(self._tls)
        try:
            self._port = await Port.bind(host, port, self._make_protocol, self._evict_stranger, Reserve.PEERS)
            self._context = self._make_context()
            self._port.start_serving()
        except OSError as error:
            if self._port is not None:
                self._port.close()
            raise ConfigError(
                f"cannot listen for peers on {format_address(self._bind)}: {error.strerror or error}; "
                "stop what uses the address, or configure another peer address"
            ) from error
        for node_id, address in self._configured.items():
            self._dial(node_id, address, learned=False)

    async def stop(self) -> None:
        """Close everything; queued data is lost. May be called twice."""
        if self._stopped or self._port is None:
            self._stopped = True
            return
        self._stopped = True
        self._port.close()
        if self._door is not None:
            self._door.close()
        accepted = [*self._accepted.values(), *self._strangers]
        for connection in accepted:
            connection.end()
        for peer in self._peers.values():
            await peer.close()
        for connection in accepted:
            await connection.wait_closed()
        self._peers.clear()

    def send(self, to: str, lane: Lane, message: Message, payload: Sequence[Buffer] = ()) -> bool:
        """Queue a message for a node. Returns False if it was dropped."""
        peer = self._peers.get(to)
        if peer is None or peer.peer is None:
            return False
        head = encode_head(FrameKind.MESSAGE, self._encode_message(message), sum(map(len, payload)))
        return peer.send(lane, head, payload)

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Queue opaque bytes for a node on the bulk lane. Returns False if they were dropped."""
        peer = self._peers.get(to)
        if peer is None or peer.peer is None:
            return False
        return peer.send(Lane.BULK, encode_head(FrameKind.DATA, _encode(channel), sum(map(len, data))), data)

    def queued_bytes(self, to: str, lane: Lane) -> int:
        """Return the number of bytes accepted for a node and not yet handed to the kernel."""
        peer = self._peers.get(to)
        return 0 if peer is None else peer.queued_bytes(lane)

    def open_channel(self, number: int, listener: ChannelListener) -> None:
        """Give the data of a channel to `listener` instead of to the receiver."""
        invariant(number not in self._channels, "a channel has one listener", number=number)
        self._channels[number] = listener

    def can_exchange(self, node_id: str) -> bool:
        """Return whether data can be sent to the node and it can send data back."""
        peer = self._peers.get(node_id)
        accepted = self._accepted.get((node_id, Lane.BULK))
        return peer is not None and peer.peer is not None and accepted is not None and accepted.ready

    def adopt(self, group_id: str) -> None:
        """Show this group identity from now on, and close links to nodes of another group."""
        if self._belonging.group_id == group_id:
            return
        self._belonging.group_id = group_id
        for connection in list(self._accepted.values()):
            assert connection.hello is not None
            assert connection.peer is not None
            mismatch = self._belonging.find_mismatch(connection.hello.group_id, connection.peer)
            if mismatch is not None:
                connection.end(HelloRejectedError(mismatch))
        for peer in self._peers.values():
            peer.part_from_strangers()

    def on_open(self, connection: PeerConnection) -> None:
        """Register an accepted connection that has proven itself, and dial its node if it is new."""
        self._forget_stranger(connection)
        hello, sender = connection.hello, connection.peer
        assert hello is not None
        assert sender is not None
        for lane in Lane:
            older = self._accepted.get((sender.node_id, lane))
            if older is not None and (lane is hello.lane or older.peer != sender):
                self._forget_accepted(older)
                older.end()
                self._warn(
                    f"{sender} dialled in anew while {older.peer} was connected: it came back from a crash or a "
                    "network failure, or two processes wrongly share the node id"
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
            self._warn(
                f"{sender} dialled in, and is sent nothing: {self._limits.max_learned_peers} nodes outside the "
                "configuration are dialled already, which is the limit"
            )

    def on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """Pass on a frame of an accepted connection."""
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
        """Forget an accepted connection that is gone."""
        self._forget_stranger(connection)
        self._forget_accepted(connection)
        if isinstance(error, PeerError):
            if connection.peer is not None:
                self._warn(f"closed the link of {connection.peer}: {error}")
                return
            host = connection.remote_host
            self._warn_of_stranger(
                self._stranger_log_limiter, host, type(error).__name__, f"closed a connection from {host}: {error}"
            )

    def on_reachable(self, peer: ReplicaId) -> None:
        """Notify the receiver that a peer can be sent to."""
        if not self._stopped:
            self._receiver.on_connected(peer)

    def on_unreachable(self, peer: ReplicaId) -> None:
        """Notify the receiver and the channels that a peer was lost."""
        if not self._stopped:
            self._receiver.on_disconnected(peer)
            self._announce_loss(peer.node_id)

    def on_dial_failed(self, node_id: str, address: Address, error: Exception) -> None:
        """Log a failed attempt, and stop dialling a learned peer that is gone in both directions."""
        tls_reason = handshake_failure(error) if self._tls is not None and isinstance(error, OSError) else None
        reason = f"{tls_reason or error}"  # a stranger may listen there, and then chooses the text
        self._warn_of_stranger(
            self._dial_log_limiter,
            node_id,
            reason,
            f"cannot link to peer {node_id} at {format_address(address)}: {reason}",
        )
        peer = self._peers.get(node_id)
        accepted = any((node_id, lane) in self._accepted for lane in Lane)
        if peer is not None and peer.learned and not accepted and not self._stopped:
            # It knows where this node is, and dials in if it comes back. A node that was removed never comes back.
            _log.info(
                "event=peer_gone peer=%s reason='it is not in the configuration and no longer connected'", node_id
            )
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
            secrets=self._secrets,
            tls=self._tls,
            limits=self._limits,
            counters=self.counters,
            make_nonce=_make_nonce,
            rng=random.Random(),
            belonging=self._belonging,
        )

    def _dial(self, node_id: str, address: Address, *, learned: bool) -> None:
        assert self._context is not None
        peer = self._peers[node_id] = DialledPeer(node_id, address, self._context, self, learned=learned)
        peer.start()

    def _make_door(self, tls: PeerTls) -> Door:
        return Door(
            tls.server,
            takes_plain=False,
            max_connections=self._limits.max_strangers,
            open_connections=_no_open_connections,
            silence_s=self._limits.handshake_timeout_s,
        )

    def _make_protocol(self, host: str) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection: a doorman, if there is a door."""
        if self._door is None:
            return self._make_connection(host)
        return self._door.doorman(partial(self._make_connection, host))

    def _make_connection(self, host: str) -> PeerConnection:
        assert self._context is not None
        first, *others = self._secrets.all
        handshake = Handshake.accept(self._context.hello, first, _make_nonce(), self._belonging, others)
        connection = PeerConnection(
            *(handshake, self, self.counters, self._limits.dead_peer_timeout_s),
            binds_names=self._tls is not None and self._tls.binds_names,
        )
        if self._stopped:
            connection.end()
            return connection
        if len(self._strangers) >= self._limits.max_strangers:
            self._make_room()
        self._strangers.add(connection, host)
        self._timers[connection] = asyncio.get_running_loop().call_later(
            self._limits.handshake_timeout_s, self._expire, connection
        )
        return connection

    def _evict_stranger(self) -> bool:
        """End a connection that has not proven itself. Returns False if there is none."""
        if self._door is not None and self._door.make_room():
            return True
        has_stranger = len(self._strangers) > 0
        if has_stranger:
            self._make_room()
        return has_stranger

    def _make_room(self) -> None:
        """End the handshake of a stranger, because the new connection may be a node of the group."""
        self.counters.refused_strangers += 1
        stranger = self._strangers.oldest_of_busiest_host()
        self._forget_stranger(stranger)
        stranger.end()
        host = stranger.remote_host or "an unknown host"
        self._warn_of_stranger(
            self._stranger_log_limiter,
            host,
            "too many",
            f"connections from {host} are closed before their handshakes are finished: "
            f"{self._limits.max_strangers} are in a handshake, which is the limit, and this host has the most of them",
        )

    def _expire(self, connection: PeerConnection) -> None:
        self._forget_stranger(connection)
        self.counters.protocol_errors += 1
        timeout_s = self._limits.handshake_timeout_s
        connection.end(PeerProtocolError(f"its handshake was not finished within {timeout_s:g} s"))

    def _forget_stranger(self, connection: PeerConnection) -> None:
        if self._strangers.discard(connection):
            self._timers.pop(connection).cancel()

    def _forget_accepted(self, connection: PeerConnection) -> None:
        """Forget an accepted connection, unless another connection has taken its place."""
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

    def _warn_of_stranger(self, log_limiter: Telling, host: str, kind: str, reason: str) -> None:
        """Log a warning that strangers can cause, or count it as left out."""
        left_out = None if self._stopped else log_limiter.untold(host, kind)
        if left_out is not None:
            _log.warning("node=%s event=link_trouble untold=%d reason=%s", self._me.node_id, left_out, reason)

    def _warn(self, reason: str) -> None:
        """Log a warning unless the same text was logged within `COMPLAINT_INTERVAL_S`."""
        now = time.monotonic()
        warned_at = self._last_warned_at.get(reason)
        if self._stopped or (warned_at is not None and now - warned_at < COMPLAINT_INTERVAL_S):
            return
        if len(self._last_warned_at) >= MAX_COMPLAINTS:
            self._last_warned_at.clear()
        self._last_warned_at[reason] = now
        _log.warning("node=%s event=link_trouble reason=%s", self._me.node_id, reason)


def _no_open_connections() -> int:
    """Return 0: a connection takes a place at the door only while it waits there."""
    return 0


def _make_nonce() -> bytes:
    return token_bytes(NONCE_BYTES)
