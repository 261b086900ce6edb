"""Return of a node whose directory lost something: only while a leader that lists it answers.

A directory that lost what it promised must become another incarnation, without a log.  Where a leader lists the node,
a majority has everything that was acknowledged, and takes the new incarnation in.  Where none can be elected, because
other nodes lost something as well, what this one has left may be the last copy: it waits, and says what an operator can
do.

On the returning channel of the bulk lane:

    offset  size  field
         0     1  kind  0 question, 1 answer
         1     n  in an answer: MessagePack of `Standing`

Who asks takes no part in the group: it sends nothing else, and drops whatever it receives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from dledger.environment import Environment
from dledger.errors import LostDirectoryError
from dledger.net.transport import Transport
from dledger.types import Membership, ReplicaId

RETURNING_CHANNEL = 253
ASK_EVERY_S = 0.25
SAY_FIRST_AFTER_S = 3.0
"""A group that is whole answers before that."""
SAY_EVERY_S = 30.0

_QUESTION, _ANSWER = b"\0", b"\1"
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Standing(msgspec.Struct, frozen=True):
    """What a node knows of the group.

    `leads`: it is the leader, and a majority has just confirmed it.  `lost`: it waits itself, and why.  `membership` is
    None if it does not know it.
    """

    leads: bool = False
    membership: Membership | None = None
    leader_id: str | None = None
    lost: str = ""


_decode_standing = msgspec.msgpack.Decoder(Standing).decode


class StandingDesk:
    """Answers the questions of nodes that want to come back.

    `standing()` is what this node knows, `confirm(callback)` calls back with None once a majority has confirmed that it
    leads, or with an error.
    """

    def __init__(
        self,
        transport: Transport,
        standing: Callable[[], Standing],
        confirm: Callable[[Callable[[Exception | None], None]], None],
    ) -> None:
        self._transport = transport
        self._standing = standing
        self._confirm = confirm

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """A question; answers that come too late are dropped."""
        if data != _QUESTION:
            return

        def confirmed(error: Exception | None) -> None:
            standing = self._standing()
            self._answer(sender, msgspec.structs.replace(standing, leads=error is None and standing.leads))

        if self._standing().leads:
            self._confirm(confirmed)
        else:
            confirmed(None)

    def _answer(self, to: ReplicaId, standing: Standing) -> None:
        self._transport.send_data(to.node_id, RETURNING_CHANNEL, (_ANSWER, _encode(standing)))


class Returning:
    """Asks the other nodes until a leader that lists this one answers; a `dledger.net.transport.Receiver`."""

    def __init__(self, node_id: str, lost: LostDirectoryError, peers: Iterable[str], environment: Environment) -> None:
        self._node_id = node_id
        self._lost = lost
        self._peers = sorted(peers)
        self._environment = environment
        self._transport: Transport | None = None
        self._done: Callable[[LostDirectoryError | None], None] | None = None
        self._heard: dict[str, Standing] = {}
        self._say_at = environment.now() + SAY_FIRST_AFTER_S

    def start(self, transport: Transport, done: Callable[[LostDirectoryError | None], None]) -> None:
        """Begin to ask.

        `done` is called once: with None when such a leader has answered, or with the error that ends this node because
        it is its group's only voter, so that no leader can ever answer.
        """
        self._transport = transport
        self._done = done
        logger.error(
            "node=%s event=directory_lost what=%r consequence=%r",
            self._node_id,
            self._lost.lost,
            "it comes back empty, as another incarnation, once a leader that lists it answers",
        )
        self._ask()

    def stop(self) -> None:
        """Ask no more; `done` is not called."""
        self._transport = self._done = None

    def describe(self) -> str:
        """What it waits for, what it has heard, and what an operator can do."""
        heard = "; ".join(f"{peer} {_describe(self._heard.get(peer))}" for peer in self._peers)
        return (
            f"{self._lost.lost}. This node waits for a leader that lists it, and comes back empty then ({heard})."
            f" If no leader can be elected, because other nodes lost something too: {self._lost.remedy}"
        )

    # ---------------------------------------------------------------- see `dledger.net.transport.Receiver`

    def on_message(self, sender: ReplicaId, message: object, payload: bytes) -> None:
        """It takes no part: a vote or an acknowledgement would rest on what is lost."""

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Another node answers, or asks because it waits itself."""
        if channel != RETURNING_CHANNEL:
            return
        if data == _QUESTION:
            self._send(sender.node_id, (_ANSWER, _encode(Standing(lost=self._lost.lost))))
            return
        try:
            standing = _decode_standing(memoryview(data)[1:])
        except msgspec.MsgspecError:
            return
        self._heard[sender.node_id] = standing
        if standing.leads and standing.membership is not None and standing.membership.find(self._node_id) is not None:
            self._end(None)
        elif all(self._is_only_voter(self._heard.get(peer)) for peer in self._peers):
            self._end(only_voter(self._lost))

    def on_connected(self, peer: ReplicaId) -> None:
        """A peer can be asked."""
        self._send(peer.node_id, (_QUESTION,))

    def on_disconnected(self, peer: ReplicaId) -> None:
        """What it said may not hold any more."""
        self._heard.pop(peer.node_id, None)

    def _is_only_voter(self, standing: Standing | None) -> bool:
        """As one peer sees it, who may be behind: it takes all of them."""
        membership = None if standing is None else standing.membership
        return membership is not None and {voter.node_id for voter in membership.voters} == {self._node_id}

    def _ask(self) -> None:
        if self._transport is None:
            return
        self._environment.call_later(ASK_EVERY_S, self._ask)
        for peer in self._peers:
            self._send(peer, (_QUESTION,))
        now = self._environment.now()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            logger.warning("node=%s event=waits_for_leader text=%r", self._node_id, self.describe())

    def _send(self, to: str, data: Sequence[bytes]) -> None:
        if self._transport is not None:
            self._transport.send_data(to, RETURNING_CHANNEL, data)

    def _end(self, error: LostDirectoryError | None) -> None:
        done = self._done
        self.stop()
        if done is not None:
            done(error)


def only_voter(lost: LostDirectoryError) -> LostDirectoryError:
    """The error of a node that nobody can take in again."""
    return LostDirectoryError(
        lost.lost,
        lost.remedy,
        "This node is its group's only voter: nobody else has what it acknowledged, and it does not begin anew by"
        " itself",
    )


def _describe(standing: Standing | None) -> str:
    if standing is None:
        return "does not answer"
    if standing.lost:
        return f"waits as well, because of {standing.lost}"
    if standing.leads:
        return "leads and does not list this node: it was removed from the group; empty its directory to have it join"
    if standing.leader_id is not None:
        return f"follows {standing.leader_id}"
    return "knows no leader"
