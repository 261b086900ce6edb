"""Digest votes: check that all replicas compute the same state, by comparing their digests at every snapshot mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from dledger.replica.commands import Digest
from dledger.types import Membership, ReplicaId

KEPT_MARKS = 8


class Verdict(Enum):
    """Outcome of the digests of one mark."""

    OPEN = "open"
    AGREED = "agreed"
    SELF_DIFFERS = "self differs"
    NO_MAJORITY = "no majority"


class DigestVotes:
    """Digests of the newest marks, as applied from the log."""

    def __init__(self) -> None:
        self._marks: dict[int, dict[ReplicaId, int]] = {}
        self._disputed_mark: int | None = None

    def record(self, digest: Digest, membership: Membership, me: ReplicaId) -> Verdict:
        """Record a digest and return the verdict on its mark. Only voters' digests count."""
        mark = self._marks.setdefault(digest.position, {})
        mark[ReplicaId(digest.node_id, digest.incarnation)] = digest.digest
        while len(self._marks) > KEPT_MARKS:
            del self._marks[min(self._marks)]
        votes = _votes(mark, membership)
        if not votes:
            return Verdict.OPEN
        value, count = votes.most_common(1)[0]
        if count >= membership.quorum:
            self._disputed_mark = None
            return Verdict.SELF_DIFFERS if mark.get(me, value) != value else Verdict.AGREED
        if votes.total() == len(membership.voters):
            self._disputed_mark = digest.position
            return Verdict.NO_MAJORITY
        return Verdict.OPEN

    def has_dispute(self, membership: Membership) -> bool:
        """Return whether the replicas' states differ without a majority.

        That is so if all voters of a mark reported a digest and neither they nor the current voters have a majority for
        one value.
        """
        if self._disputed_mark is None:
            return False
        votes = _votes(self._marks.get(self._disputed_mark, {}), membership)
        if votes and votes.most_common(1)[0][1] >= membership.quorum:
            self._disputed_mark = None
        return self._disputed_mark is not None

    def is_recorded(self, digest: Digest) -> bool:
        """Return whether this very digest was applied, or belongs to a mark too old to be counted."""
        if len(self._marks) == KEPT_MARKS and digest.position < min(self._marks):
            return True
        replica = ReplicaId(digest.node_id, digest.incarnation)
        return self._marks.get(digest.position, {}).get(replica) == digest.digest


def _votes(mark: Mapping[ReplicaId, int], membership: Membership) -> Counter[int]:
    return Counter(value for replica, value in mark.items() if replica in membership.voters)
