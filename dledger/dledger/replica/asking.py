"""Questions of a node that does not take part in its group yet: it asks its peers what they know of the group.

On the returning channel of the bulk lane:

    offset  size  field
         0     1  kind  0 question, 1 answer
         1     n  in an answer: MessagePack of `GroupKnowledge`

Until it takes part, the node sends nothing else and drops all other messages that it receives.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from dledger.environment import Environment
from dledger.net.transport import Transport
from dledger.types import Membership, ReplicaId

T = TypeVar("T")

RETURNING_CHANNEL = 253
ASK_INTERVAL_S = 0.25
FIRST_LOG_DELAY_S = 3.0
"""Seconds before the first log line about waiting. If all nodes of the group run, they answer earlier."""
LOG_INTERVAL_S = 30.0

QUESTION, ANSWER = b"\0", b"\1"
encode_knowledge = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class GroupKnowledge(msgspec.Struct, frozen=True):
    """Knowledge that a node has of the group.

    `leads`: the node is the leader, and a majority has just confirmed that. `lost`: if the node itself waits, the
    reason. `membership` is None if the node does not know it. `founds`: the node's directory is empty, and it asks
    whether to found the group (`dledger.replica.founding`).
    """

    leads: bool = False
    membership: Membership | None = None
    leader_id: str | None = None
    lost: str = ""
    founds: bool = False

    @property
    def is_in_group(self) -> bool:
        """True if the node knows of a group, or was in one."""
        return bool(self.lost or (self.membership is not None and self.membership.voters))


decode_knowledge = msgspec.msgpack.Decoder(GroupKnowledge).decode


class PeerInquiry(ABC, Generic[T]):
    """Asks the peers until their answers tell what to do. It is a `dledger.net.transport.Receiver`.

    A subclass provides this node's own answer, and judges the answers of the peers.
    """

    event: ClassVar[str]
    """Event of the log line that repeatedly says what the node waits for."""

    def __init__(self, node_id: str, peers: Iterable[str], environment: Environment) -> None:
        self._node_id = node_id
        self._peers = sorted(peers)
        self._environment = environment
        self._transport: Transport | None = None
        self._on_conclusion: Callable[[T], None] | None = None
        self._answers: dict[str, GroupKnowledge] = {}
        self._next_log_at = environment.now() + FIRST_LOG_DELAY_S

    def start(self, transport: Transport, done: Callable[[T], None]) -> None:
        """Begin to ask. `done` is called once, with the conclusion from the answers."""
        self._transport = transport
        self._on_conclusion = done
        self._ask()

    def stop(self) -> None:
        """Stop asking; `done` is not called."""
        self._transport = self._on_conclusion = None

    @abstractmethod
    def describe(self) -> str:
        """Say what the node waits for, and what an operator can do."""

    @abstractmethod
    def _own_answer(self) -> GroupKnowledge:
        """Return what this node answers."""

    @abstractmethod
    def _judge(self, peer: str, knowledge: GroupKnowledge) -> None:
        """Decide whether the answers suffice, now that `peer` has given a new one. If so, call `_finish`."""

    # ---------------------------------------------------------------- see `dledger.net.transport.Receiver`

    def on_message(self, sender: ReplicaId, message: object, payload: bytes) -> None:
        """Drop the message: the node takes no part. Its vote or acknowledgement could rest on data that it lost."""

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Store an answer, or answer a node that asks as well."""
        if channel != RETURNING_CHANNEL:
            return
        if data == QUESTION:
            self._send(sender.node_id, (ANSWER, encode_knowledge(self._own_answer())))
            return
        try:
            knowledge = decode_knowledge(memoryview(data)[1:])
        except msgspec.MsgspecError:
            return
        self._answers[sender.node_id] = knowledge
        self._judge(sender.node_id, knowledge)

    def on_connected(self, peer: ReplicaId) -> None:
        """Ask a peer that has just become reachable."""
        self._send(peer.node_id, (QUESTION,))

    def on_disconnected(self, peer: ReplicaId) -> None:
        """Forget the peer's last answer, which may not hold any more."""
        self._answers.pop(peer.node_id, None)

    def _ask(self) -> None:
        if self._transport is None:
            return
        self._environment.call_later(ASK_INTERVAL_S, self._ask)
        for peer in self._peers:
            self._send(peer, (QUESTION,))
        now = self._environment.now()
        if now >= self._next_log_at:
            self._next_log_at = now + LOG_INTERVAL_S
            logger.warning("node=%s event=%s text=%r", self._node_id, self.event, self.describe())

    def _send(self, to: str, data: Sequence[bytes]) -> None:
        if self._transport is not None:
            self._transport.send_data(to, RETURNING_CHANNEL, data)

    def _finish(self, result: T) -> None:
        on_conclusion = self._on_conclusion
        self.stop()
        if on_conclusion is not None:
            on_conclusion(result)
