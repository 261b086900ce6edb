"""Do all replicas compute the same state?  Each says what its own amounted to at every snapshot mark."""

from __future__ import annotations

from collections import Counter
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
        self.disagree = False
        """All voters of the newest complete mark spoke and no majority agrees."""

    def record(self, digest: Digest, membership: Membership, me: ReplicaId) -> Verdict:
        """Count one digest in; only voters' count."""
        mark = self._marks.setdefault(digest.position, {})
        mark[ReplicaId(digest.node_id, digest.incarnation)] = digest.digest
        while len(self._marks) > KEPT_MARKS:
            del self._marks[min(self._marks)]
        votes = Counter(value for replica, value in mark.items() if replica in membership.voters)
        if not votes:
            return Verdict.OPEN
        value, count = votes.most_common(1)[0]
        if count >= membership.quorum:
            self.disagree = False
            return Verdict.SELF_DIFFERS if mark.get(me, value) != value else Verdict.AGREED
        if votes.total() == len(membership.voters):
            self.disagree = True
            return Verdict.NO_MAJORITY
        return Verdict.OPEN

    def knows(self, digest: Digest) -> bool:
        """Whether this very digest was applied."""
        replica = ReplicaId(digest.node_id, digest.incarnation)
        return self._marks.get(digest.position, {}).get(replica) == digest.digest
