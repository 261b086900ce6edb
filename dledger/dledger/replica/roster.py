"""Roster of a group: the log's lines about members that come, are promoted and go."""

from __future__ import annotations

import logging

from dledger.types import Membership, ReplicaId

logger = logging.getLogger(__name__)


class Roster:
    """Remembers the membership in force and logs how another one differs."""

    def __init__(self, node_id: str, membership: Membership) -> None:
        self._node_id = node_id
        self._known = membership

    def changed(self, membership: Membership) -> None:
        """Another membership is in force; it may be taken back as long as it is not committed."""
        before, self._known = self._known, membership
        for member in membership.members:
            is_voter = member in membership.voters
            if member not in before.members:
                self._say("voter_added" if is_voter else "learner_added", member)
            elif is_voter and member not in before.voters:
                self._say("learner_promoted", member)
            elif not is_voter and member in before.voters:
                self._say("voter_demoted", member)
        for member in before.members:
            if member not in membership.members:
                self._say("member_removed", member)

    def _say(self, event: str, member: ReplicaId) -> None:
        logger.info(
            "node=%s event=%s member=%s incarnation=%s voters=%s",
            self._node_id,
            event,
            member.node_id,
            member.incarnation,
            ",".join(voter.node_id for voter in self._known.voters),
        )
