"""Questions of a node that does not take part in its group yet: it asks its peers what they know of the group.

On the returning channel of the bulk lane:

    offset  size  field
         0     1  kind  0 question, 1 answer
         1     n  in an answer: MessagePack of `GroupKnowledge`

Until it takes part, the node sends nothing else and drops all other messages that it receives. Two kinds of nodes ask:

- A node that is to found a group, and whose directory is empty. A `--bootstrap` that stays in a unit file must not
  found a second group of the same name once the node's disk is replaced. So it asks every peer whether that peer is in
  a group. If any peer is, the node joins. If none is, the node founds. Of several nodes that ask each other, the node
  with the smallest node id founds. A silent peer may be in a group, so the node waits for its answer.
- A node whose directory lost what it promised. It must become another incarnation, without a log, and does so only
  while a leader that lists it answers. Then a majority has everything acknowledged, and the leader adds the new
  incarnation. If other nodes lost something as well, no leader may be electable. Then this node's data may be the last
  copy: it waits, and says what an operator can do.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from dledger.environment import Environment
from dledger.errors import LostDirectoryError
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
    whether to found the group (`dledger.replica.start.inquiries`).
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


class FoundingInquiry(PeerInquiry[bool]):
    """Asks the peers until it is known whether to found the group or to join it."""

    event: ClassVar = "waits_for_peers"

    def describe(self) -> str:
        """Name the node that founds, or the silent peers, and say what an operator can do."""
        founder = next((peer for peer in self._peers if self._is_ahead(peer)), None)
        if founder is not None:
            return f"{founder} founds the group; this node waits until it can join"
        silent = ", ".join(peer for peer in self._peers if peer not in self._answers)
        return (
            f"this node is to found its group, and first asks whether there is one: no answer from {silent}. Start"
            f" every node of [peers] (only one of them with --bootstrap); --bootstrap=alone founds without asking"
        )

    def _own_answer(self) -> GroupKnowledge:
        return GroupKnowledge(founds=True)

    def _judge(self, peer: str, knowledge: GroupKnowledge) -> None:
        if knowledge.is_in_group:
            logger.warning(
                "node=%s event=group_exists peer=%s consequence=%r",
                self._node_id,
                peer,
                "this node joins that group as a learner, and founds none: remove --bootstrap from its command",
            )
            self._finish(result=False)
        elif self._answers.keys() >= set(self._peers) and not any(map(self._is_ahead, self._peers)):
            # A node that is no peer of this one may answer as well. Its answer does not stand for a silent peer.
            self._finish(result=True)

    def _is_ahead(self, peer: str) -> bool:
        knowledge = self._answers.get(peer)
        return knowledge is not None and knowledge.founds and peer < self._node_id


class AnswerDesk:
    """Answers the questions of nodes that want to come back.

    `knowledge()` returns what this node knows. `confirm(callback)` calls `callback(None)` once a majority has confirmed
    that this node leads, or calls it with an error.
    """

    def __init__(
        self,
        transport: Transport,
        knowledge: Callable[[], GroupKnowledge],
        confirm: Callable[[Callable[[Exception | None], None]], None],
    ) -> None:
        self._transport = transport
        self._knowledge = knowledge
        self._confirm = confirm

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Answer a question. Answers that are too late are dropped."""
        if data != QUESTION:
            return

        def confirmed(error: Exception | None) -> None:
            knowledge = self._knowledge()
            self._answer(sender, msgspec.structs.replace(knowledge, leads=error is None and knowledge.leads))

        if self._knowledge().leads:
            self._confirm(confirmed)
        else:
            confirmed(None)

    def _answer(self, to: ReplicaId, knowledge: GroupKnowledge) -> None:
        self._transport.send_data(to.node_id, RETURNING_CHANNEL, (ANSWER, encode_knowledge(knowledge)))


class ReturnInquiry(PeerInquiry[LostDirectoryError | None]):
    """Asks the other nodes until a leader that lists this one answers.

    The result is None when that leader has answered. It is an error if this node is its group's only voter: then no
    leader can ever answer, and the error ends the node.
    """

    event: ClassVar = "waits_for_leader"

    def __init__(self, node_id: str, loss: LostDirectoryError, peers: Iterable[str], environment: Environment) -> None:
        super().__init__(node_id, peers, environment)
        self._loss = loss

    def start(self, transport: Transport, done: Callable[[LostDirectoryError | None], None]) -> None:
        """Log that the directory is lost, then begin to ask."""
        logger.error(
            "node=%s event=directory_lost what=%r consequence=%r",
            self._node_id,
            self._loss.lost,
            "it comes back empty, as another incarnation, once a leader that lists it answers",
        )
        super().start(transport, done)

    def describe(self) -> str:
        """Say what was lost, what each peer has answered, and what an operator can do."""
        answers = "; ".join(f"{peer} {_describe(self._answers.get(peer))}" for peer in self._peers)
        return (
            f"{self._loss.lost}. This node waits for a leader that lists it, and comes back empty then ({answers})."
            f" If no leader can be elected, because other nodes lost something too: {self._loss.remedy}"
        )

    def _own_answer(self) -> GroupKnowledge:
        return GroupKnowledge(lost=self._loss.lost)

    def _judge(self, peer: str, knowledge: GroupKnowledge) -> None:  # noqa: ARG002 -- see `PeerInquiry`
        if (
            knowledge.leads
            and knowledge.membership is not None
            and knowledge.membership.find(self._node_id) is not None
        ):
            self._finish(None)
        elif all(self._is_only_voter(self._answers.get(other)) for other in self._peers):
            self._finish(only_voter_error(self._loss))

    def _is_only_voter(self, knowledge: GroupKnowledge | None) -> bool:
        """Return whether this node is the only voter in one peer's view.

        A peer may be behind, so all peers must agree.
        """
        membership = None if knowledge is None else knowledge.membership
        return membership is not None and {voter.node_id for voter in membership.voters} == {self._node_id}


def only_voter_error(loss: LostDirectoryError) -> LostDirectoryError:
    """Return the error of a node that nobody can add again."""
    return LostDirectoryError(
        loss.lost,
        loss.remedy,
        "This node is its group's only voter: no other node has the entries that it acknowledged, and it does"
        " not come back empty by itself",
    )


def _describe(knowledge: GroupKnowledge | None) -> str:
    if knowledge is None:
        return "does not answer"
    if knowledge.lost:
        return f"waits as well, because of {knowledge.lost}"
    if knowledge.founds:
        return "is to found a group, if there is none"
    if knowledge.leads:
        return "leads and does not list this node: it was removed from the group; empty its directory to have it join"
    if knowledge.leader_id is not None:
        return f"follows {knowledge.leader_id}"
    return "knows no leader"
