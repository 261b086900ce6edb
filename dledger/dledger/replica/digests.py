"""Do all replicas compute the same state?  Each says what its own amounted to at every snapshot mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from dledger.replica.commands import Digest
from dledger.types import Membership, ReplicaId

KEPT_MARKS = 8


class Verdict(Enum):
    """What the digests of one mark say."""

    OPEN = "open"
    AGREED = "agreed"
    SELF_DIFFERS = "self differs"
    NO_MAJORITY = "no majority"


class DigestVotes:
    """The digests of the newest marks, as applied from the log."""

    def __init__(self) -> None:
        self._marks: dict[int, dict[ReplicaId, int]] = {}
        self._disputed: int | None = None

    def record(self, digest: Digest, membership: Membership, me: ReplicaId) -> Verdict:
        """Count one digest in; only voters' count."""
        mark = self._marks.setdefault(digest.position, {})
        mark[ReplicaId(digest.node_id, digest.incarnation)] = digest.digest
        while len(self._marks) > KEPT_MARKS:
            del self._marks[min(self._marks)]
        votes = _votes(mark, membership)
        if not votes:
            return Verdict.OPEN
        value, count = votes.most_common(1)[0]
        if count >= membership.quorum:
            self._disputed = None
            return Verdict.SELF_DIFFERS if mark.get(me, value) != value else Verdict.AGREED
        if votes.total() == len(membership.voters):
            self._disputed = digest.position
            return Verdict.NO_MAJORITY
        return Verdict.OPEN

    def disagree(self, membership: Membership) -> bool:
        """All voters of a mark spoke and no majority agreed, nor does one of those who are voters now."""
        if self._disputed is None:
            return False
        votes = _votes(self._marks.get(self._disputed, {}), membership)
        if votes and votes.most_common(1)[0][1] >= membership.quorum:
            self._disputed = None
        return self._disputed is not None

    def knows(self, digest: Digest) -> bool:
        """Whether this very digest was applied, or is of a mark that is too old to be counted."""
        if len(self._marks) == KEPT_MARKS and digest.position < min(self._marks):
            return True
        replica = ReplicaId(digest.node_id, digest.incarnation)
        return self._marks.get(digest.position, {}).get(replica) == digest.digest


def _votes(mark: Mapping[ReplicaId, int], membership: Membership) -> Counter[int]:
    return Counter(value for replica, value in mark.items() if replica in membership.voters)
