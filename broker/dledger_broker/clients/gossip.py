"""Gossip: the messages in which the nodes of a group report their clients to each other, on a request channel of its
own.

    Hello          a node's client address, to each node whose own address it does not know yet: after a change of
                   leadership, and every few seconds
    Table          a node's clients, to the leader: whole after a change of leadership, then what has changed; a large
                   table in several parts: the first counts as the whole, further parts as changes
    GroupsChanged  by the leader to every node: members or subscriptions of these consumer groups changed, notify the
                   listed clients (request 40)

    Placed         the leader's answer to the table of a node that serves readers (`READS_AS`): where it places them

Each message is a MessagePack array with a tag. Every other message is answered with a `Hello`, so that each side learns
the other's address. After a lost table the next table is whole. The clients' periodic rebalance makes up for a lost
`GroupsChanged`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from dledger.environment import Cancellable, Environment
from dledger.net.requests import RequestChannel
from dledger.net.transport import PeerError
from dledger.types import ReplicaId
from dledger_broker.clients.tables import ClientRow, LocalClients, MergedClients
from dledger_broker.kernel.leadership import LeadershipView

GOSSIP_CHANNEL: Final = 2
READS_AS: Final = "reads_as"
"""Name of the fact with which a node says that it serves readers and wants to learn of their placement. Its value is
the node's broker id as a follower.
"""

COALESCE_S: Final = 0.02
"""Time in seconds for which changes are collected before they are sent."""
PERIOD_S: Final = 5.0
"""Interval in seconds at which a node shows that it is alive."""
NODE_TIMEOUT_S: Final = 20.0
"""Time limit in seconds: the clients of a node that has been silent for longer are no longer counted."""
EXCHANGE_TIMEOUT_S: Final = 2.0
"""Time limit in seconds for the answer to a message."""
TABLE_BYTES: Final = 1 << 20
"""Maximum size in bytes of the rows in a table message. A client whose row is larger goes alone."""
COMPLETE_S: Final = 1.0
"""Time limit in seconds for which a new leader waits for the tables of all nodes. Then it answers from the tables that
have arrived.
"""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The address at which clients reach this node."""

    address: str


class Table(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Clients of a node: all of them if `whole`, otherwise clients that changed and clients that left.

    - `holds_pulls`: the node has long polls waiting, so the leader must announce commits to it at once.
    - `kinds`: the command kinds that the node understands.
    - `more`: further parts of the table follow.
    - `facts`: numbers that parts of the node report to the leader, by name.
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
    """Consumer groups whose members have to rebalance. The receiver notifies `clients`, or all its clients if that is
    None.

    If a client heartbeats to several nodes, only one of them notifies it. The C++ client handles notices on the threads
    that take in its messages, as many as it has cores. These threads wait there for pulls to end, so a second notice
    can make the client hang.
    """

    address: str
    groups: tuple[str, ...]
    clients: tuple[str, ...] | None = None


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The broker ids that the leader sends readers to, see `features.pulling.placement`."""

    address: str
    homes: tuple[int, ...]


_Message: TypeAlias = Hello | Table | GroupsChanged | Placed
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Message).decode


class Members(Protocol):
    """Receiver of notices about the members of consumer groups."""

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        """Notify these clients of this node, or all, that these groups have changed."""

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        """Create, as the leader, missing groups and retry topics of these clients, which are new or changed."""


class Placing(Protocol):
    """Knowledge of where readers are placed."""

    def homes(self) -> Sequence[int]:
        """Return the broker ids that the leader sends readers to."""

    def set_homes(self, homes: Sequence[int]) -> None:
        """Store, as a follower, the broker ids that the leader sends readers to."""


class HeldPulls(Protocol):
    """The pulls that wait on this node."""

    def __len__(self) -> int:
        """Return the number of waiting pulls."""

    def release_groups(self, groups: set[str]) -> None:
        """Answer the waiting pulls of these consumer groups."""


class Gossip:
    """One node's part in the gossip.

    `kinds` are the command kinds that this node understands. `learned(node, kinds)` is called with the command kinds of
    another node. `facts` are numbers that parts of this node report to the leader, by name, every few seconds. A fact
    of None is left out.
    """

    def __init__(
        self,
        env: Environment,
        group: LeadershipView,
        peers: Iterable[str],
        kinds: tuple[int, ...],
        learned: Callable[[str, tuple[int, ...]], None],
    ) -> None:
        self._env = env
        self._group = group
        self._peers = tuple(peers)
        self._kinds = kinds
        self._on_kinds_learned = learned
        self._members: Members
        self._held_pulls: HeldPulls | None = None
        self._placing: Placing | None = None
        self.facts: dict[str, Callable[[], int | None]] = {}
        self._facts: dict[str, Mapping[str, int]] = {}
        self.local = LocalClients(self._local_changed)
        self.merged = MergedClients(group.node_id, self.local.index)
        self._channel: RequestChannel | None = None
        self._changed_ids: set[str] = set()
        self._table_target: tuple[str, int] | None = None
        self._is_exchanging = False
        self._exchange_waiters: list[Callable[[], None]] = []
        self._answer_waiters: list[Callable[[], None]] = []
        """Callbacks that wait only for the answer to the table that is under way."""
        self._reported_holds_pulls = False
        self._table_start_terms: dict[str, int] = {}
        """Per node, the term in which it sent the first part of its table."""
        self._table_end_terms: dict[str, int] = {}
        self._ready_at = 0.0
        self._ready_term = -1
        self._last_contacts: dict[str, float] = {}
        self._nodes_holding_pulls: set[str] = set()
        self._timer: Cancellable | None = None
        self._send_timer: Cancellable | None = None

    def attach_members(self, members: Members) -> None:
        """Set the receiver of notices about members, before the node starts. It tells the gossip of a new leader."""
        self._members = members

    def attach_pulls(self, held: HeldPulls) -> None:
        """Set the pulls that wait on this node."""
        self._held_pulls = held

    def attach_placement(self, placing: Placing) -> None:
        """Set the part that places readers."""
        self._placing = placing

    def release_pulls(self, groups: set[str]) -> None:
        """Answer the waiting pulls of these groups. Call it before their members are notified (request 40)."""
        if self._held_pulls is not None:
            self._held_pulls.release_groups(groups)

    @property
    def followers_hold_pulls(self) -> bool:
        """True if clients wait for messages on another node. The leader must announce new commits to that node."""
        return bool(self._nodes_holding_pulls)

    @property
    def _holds_pulls(self) -> bool:
        return self._held_pulls is not None and len(self._held_pulls) > 0

    def start(self, channel: RequestChannel) -> None:
        """Begin to exchange messages over `channel`."""
        self._channel = channel
        self._tick()

    def stop(self) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._send_timer):
            if timer is not None:
                timer.cancel()

    def hold_changed(self) -> None:
        """Note that the first long poll waits on this node, or that the last wait has ended."""
        if self._reported_holds_pulls != self._holds_pulls:
            self._schedule()

    def after_exchange(self, done: Callable[[], None]) -> None:
        """Call `done` once the leader has this node's newest client table, or if it cannot be sent now."""
        if self._group.ready or self._group.leader_id is None or not (self._changed_ids or self._is_exchanging):
            done()
            return
        self._exchange_waiters.append(done)
        if not self._is_exchanging:
            self._send_table_now()

    def after_all_tables(self, done: Callable[[], None]) -> None:
        """Call `done`, as the leader, once every node has sent its table in this term, or `COMPLETE_S` have passed.

        A new leader that answered from its own table alone would make consumers rebalance twice.
        """
        is_complete = all(self._table_end_terms.get(peer) == self._group.term for peer in self._peers)
        if is_complete or self._env.now() - self._ready_at >= COMPLETE_S:
            done()
        else:
            self._env.call_later(COALESCE_S, partial(self.after_all_tables, done))

    def reported_facts(self, name: str) -> dict[str, int]:
        """Return, as the leader, a fact as other nodes reported it, by node. Nodes silent for `NODE_TIMEOUT_S` are left
        out.
        """
        return {node_id: facts[name] for node_id, facts in self._facts.items() if name in facts}

    def reachable_peers(self) -> bool:
        """Return whether at least one other node can be reached now."""
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
            self._members.ensure_all([rows[client_id] for client_id in sorted(client_ids) if client_id in rows])
            changed_groups = {
                group
                for group in groups
                if any(self.merged.differs_from_others(client, group) for client in client_ids)
            }
            if changed_groups:
                self._notify_groups(changed_groups)
            return
        self._changed_ids |= client_ids
        self._schedule()
        if groups and self._group.leader_id is None:
            self._members.notify(groups, None)

    def _schedule(self) -> None:
        if self._send_timer is None:
            self._send_timer = self._env.call_later(COALESCE_S, self._send_table)

    def _send_table(self) -> None:
        """Send the leader the changes since the last table, or everything if the leader or term is new or the last
        exchange failed.
        """
        self._send_timer = None
        leader, channel = self._group.leader_id, self._channel
        if leader is None or leader == self._group.node_id or channel is None or self._is_exchanging:
            return
        target = (leader, self._group.term)
        is_whole = self._table_target != target
        rows = self.local.index.rows
        ids = set(rows) if is_whole else self._changed_ids
        fitting_ids = _take_fitting(sorted(ids), rows)
        self._changed_ids = ids.difference(fitting_ids)
        self._reported_holds_pulls = self._holds_pulls
        table = Table(
            self._own_address(),
            is_whole,
            tuple(rows[client_id] for client_id in fitting_ids if client_id in rows),
            tuple(client_id for client_id in fitting_ids if client_id not in rows),
            self._reported_holds_pulls,
            self._kinds,
            bool(self._changed_ids),
            {name: fact for name, read in self.facts.items() if (fact := read()) is not None},
        )
        self._is_exchanging = channel.submit(
            leader, _encode(table), partial(self._on_table_answer, target), EXCHANGE_TIMEOUT_S
        )
        self._table_target = target if self._is_exchanging else None
        if self._is_exchanging and not self._changed_ids:
            self._answer_waiters, self._exchange_waiters = self._exchange_waiters, []

    def _on_table_answer(self, target: tuple[str, int], answer: bytes | PeerError) -> None:
        self._is_exchanging = False
        waiters, self._answer_waiters = self._answer_waiters, []
        if isinstance(answer, PeerError):
            self._table_target = None
            waiters, self._exchange_waiters = waiters + self._exchange_waiters, []
        else:
            self._learn(target[0], answer)
            if target != (self._group.leader_id, self._group.term):
                waiters, self._exchange_waiters = [], waiters + self._exchange_waiters
        for done in waiters:
            done()
        if self._exchange_waiters:
            self._send_table_now()
        elif self._changed_ids or self._table_target != (self._group.leader_id, self._group.term):
            self._schedule()
        self.hold_changed()

    def _send_table_now(self) -> None:
        """Send the table to the leader at once. If that is not possible now, call all waiting callbacks."""
        self._send_table()
        if not self._is_exchanging:
            waiters, self._exchange_waiters = self._exchange_waiters, []
            for done in waiters:
                done()

    # ---------------------------------------------------------------- the leader

    def _notify_groups(self, groups: set[str]) -> None:
        """Have every client of these groups notified that they have changed."""
        self._members.notify(groups, None)
        if self._channel is not None:
            for peer in self._peers:
                clients = self.merged.clients_to_notify(peer, groups)
                data = _encode(GroupsChanged(self._own_address(), tuple(sorted(groups)), tuple(sorted(clients))))
                self._channel.submit(peer, data, self._ignore, EXCHANGE_TIMEOUT_S)

    def _apply_table(self, node_id: str, table: Table) -> None:
        self._last_contacts[node_id] = self._env.now()
        self._facts[node_id] = table.facts
        if table.holds_pulls:
            self._nodes_holding_pulls.add(node_id)
        else:
            self._nodes_holding_pulls.discard(node_id)
        if table.whole:
            self._table_start_terms[node_id] = self._group.term
            changed = self.merged.replace(node_id, table.rows)
        else:
            changed = self.merged.update(node_id, table.rows, table.removed)
        if not table.more and self._table_start_terms.get(node_id) == self._group.term:
            self._table_end_terms[node_id] = self._group.term
        self._on_kinds_learned(node_id, table.kinds)
        if self._group.ready:
            if table.rows:
                self._members.ensure_all(list(table.rows))
            if changed:
                self._notify_groups(changed)

    # ---------------------------------------------------------------- both

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Handle a message of another node. This is the handler of the request channel."""
        message = _decode(data)
        self._group.learn_address(sender.node_id, message.address)
        if isinstance(message, Table):
            self._apply_table(sender.node_id, message)
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
            self._placing.set_homes(message.homes)

    def leader_changed(self) -> None:
        if self._group.ready:
            if self._ready_term != self._group.term:
                self._ready_term, self._ready_at = self._group.term, self._env.now()
            # Also for the clients of other nodes: their tables arrived before this node was ready and are not sent
            # again.
            self._members.ensure_all(self.merged.rows())
        self._say_hello()
        self._schedule()

    def _tick(self) -> None:
        """Expire silent clients and nodes, and show that this node is alive. Runs every `PERIOD_S`."""
        # first, so that an exception below does not end the ticks
        self._timer = self._env.call_later(PERIOD_S, self._tick)
        now = self._env.now()
        self.local.expire(now)
        for node_id, last_contact in list(self._last_contacts.items()):
            if now - last_contact > NODE_TIMEOUT_S:
                del self._last_contacts[node_id]
                del self._facts[node_id]
                self._nodes_holding_pulls.discard(node_id)
                changed = self.merged.forget_node(node_id)
                if changed and self._group.ready:
                    self._notify_groups(changed)
        self._say_hello()
        self._schedule()

    def _say_hello(self) -> None:
        if self._channel is None:
            return
        data = _encode(Hello(self._own_address()))
        for peer in self._peers:
            if self._group.address_of(peer) is None:
                self._channel.submit(peer, data, partial(self._on_hello_answer, peer), EXCHANGE_TIMEOUT_S)

    def _on_hello_answer(self, peer: str, answer: bytes | PeerError) -> None:
        if isinstance(answer, bytes):
            self._learn(peer, answer)

    def _own_address(self) -> str:
        address = self._group.address_of(self._group.node_id)
        return address or ""

    @staticmethod
    def _ignore(answer: bytes | PeerError) -> None:
        """Ignore the answer to a notice. If the notice was lost, the clients' periodic rebalance makes up for it."""


def _take_fitting(client_ids: Iterable[str], rows: Mapping[str, ClientRow]) -> list[str]:
    """Return as many of the clients as fit into one message, at least one."""
    fitting: list[str] = []
    size = 0
    for client_id in client_ids:
        row = rows.get(client_id)
        size += len(client_id) if row is None else len(_encode(row))
        if fitting and size > TABLE_BYTES:
            break
        fitting.append(client_id)
    return fitting
