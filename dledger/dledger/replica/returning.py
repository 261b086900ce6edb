"""Return of a node whose directory lost something: only while a leader that lists it answers.

A directory that lost what it promised must become another incarnation, without a log. If a leader lists the node, a
majority has everything acknowledged, and the leader adds the new incarnation. If other nodes lost something as well, no
leader may be electable. Then this node's data may be the last copy: it waits, and says what an operator can do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import ClassVar

import msgspec

from dledger.environment import Environment
from dledger.errors import LostDirectoryError
from dledger.net.transport import Transport
from dledger.replica.asking import ANSWER, QUESTION, RETURNING_CHANNEL, GroupKnowledge, PeerInquiry, encode_knowledge
from dledger.types import ReplicaId

logger = logging.getLogger(__name__)


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
