"""Roster of a group: logs which members are added, promoted and removed."""

from __future__ import annotations

import logging

from dledger.types import Membership, ReplicaId

logger = logging.getLogger(__name__)


class Roster:
    """Remembers the membership in force and logs how the next one differs."""

    def __init__(self, node_id: str, membership: Membership) -> None:
        self._node_id = node_id
        self._membership = membership

    def note_changed(self, membership: Membership) -> None:
        """Note and log that another membership is in force.

        An uncommitted membership may be replaced. The former one is then in force again, and noted here again.
        """
        previous, self._membership = self._membership, membership
        for member in membership.members:
            is_voter = member in membership.voters
            if member not in previous.members:
                self._log_change("voter_added" if is_voter else "learner_added", member)
            elif is_voter and member not in previous.voters:
                self._log_change("learner_promoted", member)
            elif not is_voter and member in previous.voters:
                self._log_change("voter_demoted", member)
        for member in previous.members:
            if member not in membership.members:
                self._log_change("member_removed", member)

    def _log_change(self, event: str, member: ReplicaId) -> None:
        logger.info(
            "node=%s event=%s member=%s incarnation=%s voters=%s",
            self._node_id,
            event,
            member.node_id,
            member.incarnation,
            ",".join(voter.node_id for voter in self._membership.voters),
        )
