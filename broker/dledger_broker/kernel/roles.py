"""Roles of a node towards readers that choose by role: leader, follower or learner."""

from __future__ import annotations

from typing import Final, Protocol

from dledger.log import Log
from dledger.statemachine import Leadership
from dledger_base.group_identity import tell_apart
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_remoting.errors import InvalidParameter, ReadBehind, ReadRoleRefused
from dledger_remoting.headers_range import ROLES

MAX_ROLES_CHARS: Final = 64
"""Maximum number of characters in a list of roles: all roles, twice. A list of 16 MB would take hundreds to read."""


class Replica(Protocol):
    """This node's place in its group, as `BrokerMachine` knows it."""

    @property
    def leadership(self) -> Leadership:
        """The leadership as the log has last reported it."""

    @property
    def applied_position(self) -> int:
        """The position up to which the log is applied."""


class Roles:
    """The present role of this node."""

    def __init__(
        self, replica: Replica, log: Log, group: LeadershipView, group_name: str, counters: BrokerCounters
    ) -> None:
        self._replica = replica
        self._log = log
        self._group = group
        self._group_name = group_name
        self._counters = counters

    @property
    def present(self) -> str:
        """The present role, one of `ROLES`."""
        if self._replica.leadership.is_leader:
            return "leader"
        votes = any(voter.node_id == self._group.node_id for voter in self._log.membership.voters)
        return "follower" if votes else "learner"

    def require(self, accepted: str) -> None:
        """Refuse a reader that does not want this node's present role. `accepted` are roles with commas between them.

        Raises `ReadRoleRefused`, `InvalidParameter`.
        """
        if len(accepted) > MAX_ROLES_CHARS:
            raise InvalidParameter(f"roles: {len(accepted)} characters, the limit is {MAX_ROLES_CHARS}")
        roles = accepted.split(",")
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise InvalidParameter(f"roles {accepted!r}: {unknown[0]!r} is none of {', '.join(ROLES)}")
        present = self.present
        if present not in roles:
            self._counters.range_reads_refused += 1
            raise ReadRoleRefused(
                f"node {self._group.node_id} is the {present} of group {self._group_name} in term {self._group.term}, "
                f"the reader accepts {accepted}: ask another node"
            )

    def require_group(self, identity: str | None) -> None:
        """Refuse a reader that means another group of the same name. Raises `ReadBehind`."""
        own_identity = self._log.group_identity
        if identity and own_identity and identity != own_identity:
            self._counters.range_reads_refused += 1
            raise ReadBehind(f"node {self._group.node_id}, asked by a reader: {tell_apart(own_identity, identity)}")

    def behind(self, position: int) -> ReadBehind:
        """Return the refusal of a reader that needs the log up to `position`, which is not applied here yet."""
        self._counters.range_reads_refused += 1
        return ReadBehind(
            f"node {self._group.node_id} has applied the log up to {self._replica.applied_position}, the reader "
            f"needs it up to {position}: ask another node, or later"
        )
