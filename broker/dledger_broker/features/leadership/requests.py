"""Requests about leadership: a node tells the leaders that it has seen (20030), the leader hands over (20031)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.errors import LogError
from dledger.log import Log
from dledger_broker.kernel import rights
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import decode_ext
from dledger_remoting.leaders import HandOverHeader, LeaderChangeRow, LeaderChanges

_ASKED: Final = "another node of the group has to be reachable and caught up: try again once it is"


class LeadershipRequests(Part):
    """Handler of both requests. Each node tells what it has seen; only the leader hands over."""

    def __init__(self, log: Log, group: LeadershipView) -> None:
        self._log = log
        self._group = group

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes of the requests. Moving the leader needs a right that no other request needs."""
        return {
            RequestCode.LIST_LEADER_CHANGES: Route(
                self.tell, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.GET),)
            ),
            RequestCode.HAND_OVER: Route(
                self.hand_over, Needs.LEADER, CHANGES, rights=(rights.cluster(Action.UPDATE),)
            ),
        }

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {RequestCode.HAND_OVER: self._leader_state}

    def _leader_state(self, request: Request) -> object:
        wanted = decode_ext(HandOverHeader, request.ext).node_id
        return {"leader": self._group.leader_id, "asked for": wanted}

    def tell(self, request: Request) -> None:
        """Answer with the leaders that this node has seen since its start (20030)."""
        rows = [
            LeaderChangeRow(change.at_ms, change.term, change.leader, change.reason)
            for change in self._log.leader_changes()
        ]
        request.respond(body=encode_body(LeaderChanges(self._group.node_id, rows)))

    def hand_over(self, request: Request) -> None:
        """Begin to hand over to a voter, and answer at once (20031). The handover may still fail.

        Raises `InvalidParameter` for this node itself, for no voter, and for a voter that cannot take over now.
        """
        node_id = decode_ext(HandOverHeader, request.ext).node_id
        if node_id == self._group.node_id:
            request.respond()
            return
        try:
            begun = self._log.hand_over(node_id)
        except LogError as error:
            raise InvalidParameter(str(error)) from error
        if not begun:
            raise InvalidParameter(f"{node_id} cannot take over now: {_ASKED}")
        request.respond()
