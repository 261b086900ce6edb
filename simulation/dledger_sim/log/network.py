"""Connections between simulated nodes.

Every node dials every other node, with a control lane and a bulk lane. A lane delivers in order; lanes race each other.
Messages are lost only with their connection. A blocked direction swallows messages until the sender gives the
connection up. In a throttled direction messages queue for their lane. They arrive at the speed to which it was set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from dledger.consensus.messages import Message
from dledger.net.links import ChannelListener
from dledger.net.transport import Buffer, Receiver
from dledger.types import Lane, ReplicaId
from dledger_base.invariants import invariant
from dledger_sim.log.scheduler import Scheduler

GIVE_UP_S = 2.0
REDIAL_S = (0.002, 0.1)
"""Minimum and maximum pause before a lost connection is dialled again, in seconds.

Messages of a dead node arrive within the minimum, or never.
"""
SPEED_BYTES_S = 200e6
"""Speed of a link without a throttle, in bytes/s."""
MAX_QUEUED_BYTES = 64 << 20


class Endpoint(Protocol):
    """Life of a node as the network sees it."""

    @property
    def replica_id(self) -> ReplicaId: ...

    @property
    def receiver(self) -> Receiver: ...

    @property
    def channels(self) -> Mapping[int, ChannelListener]:
        """Listeners for the data of numbered channels. Data of other channels goes to the receiver."""

    def deliver(self, moment: float, callback: Callable[[], None]) -> None:
        """Call at `moment` on the node's event loop, if this life has not ended by then."""


class _Message(NamedTuple):
    """Message on its way."""

    size: int
    hand_over: Callable[[Endpoint], None]


class _Link:
    """Connection that one node dialled to another; it exists while `up`. `number` tells successive connections apart.

    `rate` is the throttle of each lane in bytes/s, or None. `lines` has the messages that wait for it. A lost
    connection `lingers` for `linger_s`: nothing arrives any more, and neither end has noticed. `outlives_sender` is the
    number of a connection whose sender died, and the time until which messages already on their way still arrive.
    """

    __slots__ = (
        "blocked",
        "delay_s",
        "dialled",
        "dialling",
        "free_at",
        "lines",
        "linger_s",
        "lingers",
        "number",
        "outlives_sender",
        "queued",
        "rate",
        "up",
    )

    def __init__(self) -> None:
        self.up = False
        self.dialled: Endpoint | None = None
        self.linger_s = 0.0
        self.lingers = False
        self.number = 0
        self.outlives_sender = (-1, 0.0)
        self.blocked = False
        self.dialling = False
        self.delay_s = 0.0
        self.rate: float | None = None
        self.lines: tuple[deque[_Message], deque[_Message]] = (deque(), deque())
        self.free_at = [0.0, 0.0]
        self.queued = [0, 0]


class Network:
    """Network of all links of a group."""

    def __init__(self, scheduler: Scheduler, random: Random, nodes: Sequence[str]) -> None:
        self._scheduler = scheduler
        self._random = random
        self._endpoints: dict[str, Endpoint] = {}
        self._links = {(a, b): _Link() for a in nodes for b in nodes if a != b}
        self._connected_peers: dict[tuple[ReplicaId, str], ReplicaId] = {}
        self.delivered = 0
        self.lost = 0

    def join(self, endpoint: Endpoint) -> None:
        """Begin a node's life: connect it in both directions."""
        node = endpoint.replica_id.node_id
        for a, b in self._links:
            if a == node and self._links[a, b].lingers:
                self._close(a, b)
        self._endpoints[node] = endpoint
        for a, b in self._links:
            if node in (a, b):
                self._dial_later(a, b)

    def leave(self, node: str) -> None:
        """End a node's life. The other nodes notice. Messages that it has just sent still arrive, or are lost."""
        self._endpoints.pop(node, None)
        until = self._scheduler.now + self._random.choice((0.0, REDIAL_S[0]))
        for (a, b), link in self._links.items():
            if node in (a, b):
                if a == node and not link.lingers:
                    link.outlives_sender = link.number, until
                self.cut(a, b)

    def cut(self, a: str, b: str) -> None:
        """Lose the connection that `a` dialled to `b`, with all messages on their way."""
        link = self._links[a, b]
        if not link.up or link.lingers:
            return
        link.number += 1
        for line in link.lines:
            self.lost += len(line)
            line.clear()
        if not link.linger_s:
            self._close(a, b)
            return
        link.lingers = True
        number = link.number

        def close() -> None:
            if link.number == number:
                self._close(a, b)

        self._scheduler.after(link.linger_s, close)

    def _close(self, a: str, b: str) -> None:
        """Report the lost connection to both ends."""
        link = self._links[a, b]
        link.up = link.lingers = False
        link.number += 1
        source, target = self._endpoints.get(a), self._endpoints.get(b)
        if target is not link.dialled:
            target = None
        if source is not None:
            peer = target.replica_id if target is not None else None
            self._report_lost(source, b, peer)
            self._announce_loss(source, b)
        if target is not None:
            self._announce_loss(target, a)
        self._dial_later(a, b)

    def _announce_loss(self, endpoint: Endpoint, other: str) -> None:
        """Report a loss to the channel listeners of a node.

        Request channels need both directions, so a loss in either counts.
        """
        for listener in endpoint.channels.values():
            endpoint.deliver(self._scheduler.now, lambda listener=listener: listener.on_lost(other))  # type: ignore[misc]

    def _report_lost(self, source: Endpoint, b: str, peer: ReplicaId | None) -> None:
        known = self._connected_peers.pop((source.replica_id, b), peer)
        if known is not None:
            source.deliver(self._scheduler.now, lambda: source.receiver.on_disconnected(known))

    def block(self, a: str, b: str) -> None:
        """Swallow all messages from `a` to `b` from now on."""
        link = self._links[a, b]
        if link.blocked:
            return
        link.blocked = True
        number = link.number

        def give_up() -> None:
            if link.blocked and link.number == number:
                self.cut(a, b)

        self._scheduler.after(self._random.uniform(0, GIVE_UP_S), give_up)

    def unblock(self, a: str, b: str) -> None:
        """Undo a block, which loses the connection."""
        link = self._links[a, b]
        if link.blocked:
            link.blocked = False
            self.cut(a, b)

    def slow(self, a: str, b: str, delay_s: float) -> None:
        """Add `delay_s` to every message on a link."""
        self._links[a, b].delay_s = delay_s

    def linger(self, a: str, b: str, linger_s: float) -> None:
        """Let the ends of a link notice a lost connection only after `linger_s`."""
        self._links[a, b].linger_s = linger_s

    def throttle(self, a: str, b: str, rate: float | None) -> None:
        """Limit each lane of a link to `rate` bytes/s.

        At 0 nothing moves; None removes the limit and releases all waiting messages.
        """
        link = self._links[a, b]
        link.rate = rate
        for lane in Lane:
            if rate is None:
                line = link.lines[lane]
                while line:
                    self._carry(link, b, lane, line.popleft())
            else:
                self._carry_next(link, b, lane)

    def heal(self) -> None:
        """Undo every block, delay, limit and lingering."""
        for a, b in self._links:
            self.linger(a, b, 0.0)
            self.unblock(a, b)
            self.slow(a, b, 0.0)
            self.throttle(a, b, None)

    def _dial_later(self, a: str, b: str) -> None:
        link = self._links[a, b]
        if not link.dialling:
            link.dialling = True
            self._scheduler.after(self._random.uniform(*REDIAL_S), lambda: self._dial(a, b))

    def _dial(self, a: str, b: str) -> None:
        link = self._links[a, b]
        link.dialling = False
        source, target = self._endpoints.get(a), self._endpoints.get(b)
        if link.up or source is None or target is None:
            return
        if link.blocked:
            self._dial_later(a, b)
            return
        link.up = True
        link.dialled = target
        link.number += 1
        link.free_at = [self._scheduler.now, self._scheduler.now]
        link.queued = [0, 0]
        peer = target.replica_id
        self._connected_peers[source.replica_id, b] = peer
        number = link.number

        def connected() -> None:
            if link.up and link.number == number:
                source.receiver.on_connected(peer)

        source.deliver(self._scheduler.now, connected)

    def can_exchange(self, a: str, b: str) -> bool:
        """Return whether `a` can send to `b`, and `b` back."""
        there, back = self._links.get((a, b)), self._links.get((b, a))
        return there is not None and there.up and back is not None and back.up

    def send(self, a: ReplicaId, b: str, lane: Lane, size: int, hand_over: Callable[[Endpoint], None]) -> bool:
        """Put a message on a lane. Return False if the sender has no connection or the lane is full."""
        link = self._links.get((a.node_id, b))
        source = self._endpoints.get(a.node_id)
        if link is None or not link.up or source is None or source.replica_id != a:
            return False
        if link.lingers:
            self.lost += 1
            return True
        if b not in self._endpoints:
            return False
        if link.queued[lane] + size > MAX_QUEUED_BYTES:
            return False
        if link.blocked:
            self.lost += 1
            return True
        link.queued[lane] += size
        message = _Message(size, hand_over)
        if link.rate is None:
            self._carry(link, b, lane, message)
        else:
            line = link.lines[lane]
            line.append(message)
            if len(line) == 1:
                self._carry_next(link, b, lane)
        return True

    def _carry_next(self, link: _Link, b: str, lane: Lane) -> None:
        """Release the first message of a line after its transmission time, then the next."""
        line = link.lines[lane]
        if line and link.rate:
            self._scheduler.after(line[0].size / link.rate, partial(self._passed, link, b, lane, line[0]))

    def _passed(self, link: _Link, b: str, lane: Lane, message: _Message) -> None:
        line = link.lines[lane]
        if line and line[0] is message:
            self._carry(link, b, lane, line.popleft())
            self._carry_next(link, b, lane)

    def _carry(self, link: _Link, b: str, lane: Lane, message: _Message) -> None:
        """Deliver a message after its delay, unless the connection is lost before."""
        number, size = link.number, message.size
        delay = link.delay_s + 0.0001 + self._random.random() * 0.001 + size / SPEED_BYTES_S
        at = max(link.free_at[lane], self._scheduler.now + delay)
        link.free_at[lane] = at
        target = self._endpoints[b]

        def arrive() -> None:
            outlives, until = link.outlives_sender
            is_lost = link.number != number and (outlives != number or self._scheduler.now >= until)
            if is_lost or link.blocked:
                self.lost += 1
                return
            link.queued[lane] -= size
            self.delivered += 1
            message.hand_over(target)

        target.deliver(at, arrive)

    def queued_bytes(self, a: str, b: str, lane: Lane) -> int:
        link = self._links.get((a, b))
        return link.queued[lane] if link is not None else 0


class SimTransport:
    """`Transport` of one life of a node, with channels. `sent` is called with every message before it leaves."""

    def __init__(self, network: Network, me: ReplicaId, sent: Callable[[str, Message], None]) -> None:
        self._network = network
        self._me = me
        self._sent = sent
        self.channels: dict[int, ChannelListener] = {}

    def send(self, to: str, lane: Lane, message: Message, payload: Sequence[Buffer] = ()) -> bool:
        """Send a message to a node. Return False if it cannot be queued."""
        self._sent(to, message)
        data = b"".join(payload)
        me = self._me
        return self._network.send(
            me, to, lane, 64 + len(data), lambda endpoint: endpoint.receiver.on_message(me, message, data)
        )

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Send data on a numbered channel. Return False if it cannot be queued."""
        joined = b"".join(data)
        me = self._me

        def hand_over(endpoint: Endpoint) -> None:
            listener = endpoint.channels.get(channel)
            if listener is not None:
                listener.on_data(me, joined)
            else:
                endpoint.receiver.on_data(me, channel, joined)

        return self._network.send(me, to, Lane.BULK, 32 + len(joined), hand_over)

    def queued_bytes(self, to: str, lane: Lane) -> int:
        """Return the number of bytes that wait on a lane to a node."""
        return self._network.queued_bytes(self._me.node_id, to, lane)

    def open_channel(self, number: int, listener: ChannelListener) -> None:
        """Register the listener of a numbered channel."""
        invariant(number not in self.channels, "a channel has one listener", number=number)
        self.channels[number] = listener

    def can_exchange(self, node_id: str) -> bool:
        """Return whether this node can send to a node and receive answers."""
        return self._network.can_exchange(self._me.node_id, node_id)
