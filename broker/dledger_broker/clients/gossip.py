"""Gossip: what the nodes of a group tell each other about their clients, on a channel of its own.

    Hello          a node's client address, to every other node, until it was answered and every few seconds
    Table          a node's clients, to the leader: whole after a change of leadership, then what has changed; a large
                   one in several pieces, of which the first counts as the whole and the others as changes
    GroupsChanged  by the leader to every node: members or subscriptions of these consumer groups changed, tell those
                   clients (request 40) that nobody else tells

    Placed         the leader's answer to the table of a node that serves readers (`READS_AS`): where it places them

MessagePack arrays with a tag. Every other message is answered with a `Hello`, so that each side learns the other's
address. A lost message is made up for by the next whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from dledger.environment import Cancellable, Environment
from dledger.net.errors import PeerError
from dledger.net.requests import RequestChannel
from dledger.types import ReplicaId
from dledger_broker.clients.tables import ClientRow, LocalClients, MergedClients
from dledger_broker.kernel.leadership import Group

GOSSIP_CHANNEL: Final = 2
READS_AS: Final = "reads_as"
"""The fact with which a node says that it serves readers, and is to hear of their placement: its id as a follower."""

COALESCE_S: Final = 0.02
"""Changes are collected for so long before they are told."""
PERIOD_S: Final = 5.0
"""How often a node shows that it is there."""
NODE_TIMEOUT_S: Final = 20.0
"""The clients of a node that has been silent for so long are no longer counted."""
EXCHANGE_TIMEOUT_S: Final = 2.0
TABLE_BYTES: Final = 1 << 20
"""About so much of a table is told at once; a client whose row is larger goes alone."""
COMPLETE_S: Final = 1.0
"""How long a new leader waits for the tables of all nodes before it answers from those it has."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Where clients reach this node."""

    address: str


class Table(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Clients of a node: all of them if `whole`, otherwise those that changed and those that left.

    `holds_pulls` says that the node has long polls waiting, so that the leader tells it of commits at once; `kinds` are
    the command kinds that the node understands; `more` says that other pieces follow; `facts` are numbers that parts of
    the node tell the leader of, by their names.
    """

    address: str
    whole: bool
    rows: tuple[ClientRow, ...]
    removed: tuple[str, ...]
    holds_pulls: bool
    kinds: tuple[int, ...] = ()
    more: bool = False
    facts: dict[str, int] = {}


class GroupsChanged(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Consumer groups whose members shall look again; the receiver tells `clients`, or all that it has if that is None.

    A client that heartbeats to several nodes is told by one: the C++ client handles what it is told on the threads (as
    many as cores) that take in its messages, one after another, waiting there for pulls to end. Told twice, it stands.
    """

    address: str
    groups: tuple[str, ...]
    clients: tuple[str, ...] | None = None


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The broker ids that readers are sent to, see `features.pulling.placement`."""

    address: str
    homes: tuple[int, ...]


_Message: TypeAlias = Hello | Table | GroupsChanged | Placed
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Message).decode


class Members(Protocol):
    """Told of the members of consumer groups."""

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        """These clients of this node, or all, are to look again at these groups."""

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        """Leader: these clients came, or changed; their groups are to get what they need."""


class Placing(Protocol):
    """Knows where readers are placed."""

    def homes(self) -> Sequence[int]:
        """Leader: the broker ids that they are sent to."""

    def told(self, homes: Sequence[int]) -> None:
        """Follower: the leader sends them to these."""


class HeldPulls(Protocol):
    """Pulls that wait on this node."""

    def __len__(self) -> int:
        """How many there are."""

    def release_groups(self, groups: set[str]) -> None:
        """Answer those of these consumer groups."""


class Gossip:
    """One node's part in it.

    `kinds` are the command kinds that this node understands; `learned(node, kinds)` is told those of another one.
    `facts` are what parts of this node tell the leader, by name, every few seconds; None: nothing.
    """

    def __init__(
        self,
        env: Environment,
        group: Group,
        peers: Iterable[str],
        kinds: tuple[int, ...],
        learned: Callable[[str, tuple[int, ...]], None],
    ) -> None:
        self._env = env
        self._group = group
        self._peers = tuple(peers)
        self._kinds = kinds
        self._learned = learned
        self._members: Members
        self._held: HeldPulls | None = None
        self._placing: Placing | None = None
        self.facts: dict[str, Callable[[], int | None]] = {}
        self._facts: dict[str, Mapping[str, int]] = {}
        self.local = LocalClients(self._local_changed)
        self.merged = MergedClients(group.node_id, self.local.index)
        self._channel: RequestChannel | None = None
        self._changed_ids: set[str] = set()
        self._told: tuple[str, int] | None = None
        self._telling = False
        self._told_waiters: list[Callable[[], None]] = []
        self._waiters_of_exchange: list[Callable[[], None]] = []
        """Those who wait for nothing but the answer to what the leader is being told."""
        self._told_holding = False
        self._begun_in: dict[str, int] = {}
        """The terms in which nodes have told the first pieces of their tables."""
        self._whole_in: dict[str, int] = {}
        self._ready_at = 0.0
        self._ready_term = -1
        self._heard: dict[str, float] = {}
        self._holding: set[str] = set()
        self._timer: Cancellable | None = None
        self._send_timer: Cancellable | None = None

    def attach_members(self, members: Members) -> None:
        """Name who is told of members, before the node starts; it is told of a new leader first."""
        self._members = members
        self._group.listeners.append(self._on_leadership)

    def attach_pulls(self, held: HeldPulls) -> None:
        """Name the pulls that wait."""
        self._held = held

    def attach_placement(self, placing: Placing) -> None:
        """Name who places readers."""
        self._placing = placing

    def release_pulls(self, groups: set[str]) -> None:
        """Answer what waits of these groups; before their members are told to look again (40)."""
        if self._held is not None:
            self._held.release_groups(groups)

    @property
    def followers_hold_pulls(self) -> bool:
        """True if a node that heard nothing of the newest commits has clients waiting for them."""
        return bool(self._holding)

    @property
    def _holds_pulls(self) -> bool:
        return self._held is not None and len(self._held) > 0

    def start(self, channel: RequestChannel) -> None:
        """Begin to tell."""
        self._channel = channel
        self._tick()

    def stop(self) -> None:
        """Tell no more."""
        for timer in (self._timer, self._send_timer):
            if timer is not None:
                timer.cancel()

    def hold_changed(self) -> None:
        """Long polls began to wait on this node, or none waits any more."""
        if self._told_holding != self._holds_pulls:
            self._schedule()

    def when_told(self, done: Callable[[], None]) -> None:
        """Call `done` once the leader knows what this node's clients said so far, or cannot be told now."""
        if self._group.ready or self._group.leader_id is None or not (self._changed_ids or self._telling):
            done()
            return
        self._told_waiters.append(done)
        if not self._telling:
            self._tell_for_waiters()

    def when_complete(self, done: Callable[[], None]) -> None:
        """Leader: call `done` once every node has told its clients in this term, or had the time to.

        A leader of a moment ago that answered from its own table would make consumers rebalance twice.
        """
        known = all(self._whole_in.get(peer) == self._group.term for peer in self._peers)
        if known or self._env.now() - self._ready_at >= COMPLETE_S:
            done()
        else:
            self._env.call_later(COALESCE_S, partial(self.when_complete, done))

    def told(self, name: str) -> dict[str, int]:
        """Leader: a fact as other nodes told it, by node; of those that were heard in the last `NODE_TIMEOUT_S`."""
        return {node_id: facts[name] for node_id, facts in self._facts.items() if name in facts}

    def reachable_peers(self) -> bool:
        """True if at least one other node can be reached now."""
        channel = self._channel
        if channel is None:
            return False
        data = _encode(Hello(self._own_address()))
        reached = [peer for peer in self._peers if channel.submit(peer, data, self._ignore, EXCHANGE_TIMEOUT_S)]
        return bool(reached)

    # ---------------------------------------------------------------- this node's own clients

    def _local_changed(self, client_ids: set[str], groups: set[str]) -> None:
        if self._group.ready:
            rows = self.local.index.rows
            self._members.ensure_all([rows[client_id] for client_id in client_ids if client_id in rows])
            news = {group for group in groups if any(self.merged.is_news(client, group) for client in client_ids)}
            if news:
                self._tell_groups(news)
            return
        self._changed_ids |= client_ids
        self._schedule()
        if groups and self._group.leader_id is None:
            self._members.notify(groups, None)

    def _schedule(self) -> None:
        if self._send_timer is None:
            self._send_timer = self._env.call_later(COALESCE_S, self._send_table)

    def _send_table(self) -> None:
        """Tell the leader what has changed since it was told last, or everything if that is not known."""
        self._send_timer = None
        leader, channel = self._group.leader_id, self._channel
        if leader is None or leader == self._group.node_id or channel is None or self._telling:
            return
        target = (leader, self._group.term)
        whole = self._told != target
        rows = self.local.index.rows
        ids = set(rows) if whole else self._changed_ids
        told = _that_fit(ids, rows)
        self._changed_ids = ids.difference(told)
        self._told_holding = self._holds_pulls
        table = Table(
            self._own_address(),
            whole,
            tuple(rows[client_id] for client_id in told if client_id in rows),
            tuple(client_id for client_id in told if client_id not in rows),
            self._told_holding,
            self._kinds,
            bool(self._changed_ids),
            {name: fact for name, read in self.facts.items() if (fact := read()) is not None},
        )
        self._telling = channel.submit(leader, _encode(table), partial(self._table_told, target), EXCHANGE_TIMEOUT_S)
        self._told = target if self._telling else None
        if self._telling and not self._changed_ids:
            self._waiters_of_exchange, self._told_waiters = self._told_waiters, []

    def _table_told(self, target: tuple[str, int], answer: bytes | PeerError) -> None:
        self._telling = False
        waiters, self._waiters_of_exchange = self._waiters_of_exchange, []
        if isinstance(answer, PeerError):
            self._told = None
            waiters, self._told_waiters = waiters + self._told_waiters, []
        else:
            self._learn(target[0], answer)
            if target != (self._group.leader_id, self._group.term):
                waiters, self._told_waiters = [], waiters + self._told_waiters
        for done in waiters:
            done()
        if self._told_waiters:
            self._tell_for_waiters()
        elif self._changed_ids or self._told != (self._group.leader_id, self._group.term):
            self._schedule()
        self.hold_changed()

    def _tell_for_waiters(self) -> None:
        """Tell the leader at once; if it cannot be told now, nobody waits any longer."""
        self._send_table()
        if not self._telling:
            waiters, self._told_waiters = self._told_waiters, []
            for done in waiters:
                done()

    # ---------------------------------------------------------------- the leader

    def _tell_groups(self, groups: set[str]) -> None:
        """Have every client of these groups look again."""
        self._members.notify(groups, None)
        if self._channel is not None:
            for peer in self._peers:
                clients = self.merged.told_by(peer, groups)
                data = _encode(GroupsChanged(self._own_address(), tuple(groups), tuple(clients)))
                self._channel.submit(peer, data, self._ignore, EXCHANGE_TIMEOUT_S)

    def _take_table(self, node_id: str, table: Table) -> None:
        self._heard[node_id] = self._env.now()
        self._facts[node_id] = table.facts
        if table.holds_pulls:
            self._holding.add(node_id)
        else:
            self._holding.discard(node_id)
        if table.whole:
            self._begun_in[node_id] = self._group.term
            changed = self.merged.replace(node_id, table.rows)
        else:
            changed = self.merged.update(node_id, table.rows, table.removed)
        if not table.more and self._begun_in.get(node_id) == self._group.term:
            self._whole_in[node_id] = self._group.term
        self._learned(node_id, table.kinds)
        if self._group.ready:
            if table.rows:
                self._members.ensure_all(list(table.rows))
            if changed:
                self._tell_groups(changed)

    # ---------------------------------------------------------------- both

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Handle a message of another node: the handler of the channel."""
        message = _decode(data)
        self._group.learn_address(sender.node_id, message.address)
        if isinstance(message, Table):
            self._take_table(sender.node_id, message)
            if READS_AS in message.facts and self._placing is not None and self._group.ready:
                reply(_encode(Placed(self._own_address(), tuple(self._placing.homes()))))
                return
        elif isinstance(message, GroupsChanged):
            self._members.notify(set(message.groups), message.clients)
        reply(_encode(Hello(self._own_address())))

    def _learn(self, node_id: str, answer: bytes) -> None:
        message = _decode(answer)
        self._group.learn_address(node_id, message.address)
        if isinstance(message, Placed) and node_id == self._group.leader_id and self._placing is not None:
            self._placing.told(message.homes)

    def _on_leadership(self) -> None:
        if self._group.ready:
            if self._ready_term != self._group.term:
                self._ready_term, self._ready_at = self._group.term, self._env.now()
            # Of other nodes' clients, too: what those told before this node was ready they do not tell again.
            self._members.ensure_all(self.merged.rows())
        self._say_hello()
        self._schedule()

    def _tick(self) -> None:
        """Every few seconds: expire, and show that this node is there."""
        self._timer = self._env.call_later(PERIOD_S, self._tick)  # first: what raises below must not be the last tick
        now = self._env.now()
        self.local.expire(now)
        for node_id, heard in list(self._heard.items()):
            if now - heard > NODE_TIMEOUT_S:
                del self._heard[node_id]
                del self._facts[node_id]
                self._holding.discard(node_id)
                changed = self.merged.forget_node(node_id)
                if changed and self._group.ready:
                    self._tell_groups(changed)
        self._say_hello()
        self._schedule()

    def _say_hello(self) -> None:
        if self._channel is None:
            return
        data = _encode(Hello(self._own_address()))
        for peer in self._peers:
            if self._group.address_of(peer) is None:
                self._channel.submit(peer, data, partial(self._hello_answered, peer), EXCHANGE_TIMEOUT_S)

    def _hello_answered(self, peer: str, answer: bytes | PeerError) -> None:
        if isinstance(answer, bytes):
            self._learn(peer, answer)

    def _own_address(self) -> str:
        address = self._group.address_of(self._group.node_id)
        return address or ""

    @staticmethod
    def _ignore(answer: bytes | PeerError) -> None:
        """A lost notice is made up for by the clients' own rebalance."""


def _that_fit(client_ids: Iterable[str], rows: Mapping[str, ClientRow]) -> list[str]:
    """As many of the clients as go into one message, but one of them at least."""
    fitting: list[str] = []
    size = 0
    for client_id in client_ids:
        row = rows.get(client_id)
        size += len(client_id) if row is None else len(_encode(row))
        if fitting and size > TABLE_BYTES:
            break
        fitting.append(client_id)
    return fitting
