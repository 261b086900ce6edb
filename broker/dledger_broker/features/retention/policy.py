"""Choice of what goes: by age, by size, by how full the fullest disk is, and not what is pinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dledger.replica.status import NodeStatus
from dledger.store.log import SegmentInfo
from dledger_broker.kernel.live_config import LiveConfig

MAX_SEGMENTS_PER_ROUND: Final = 10
MAX_FORCED_SEGMENTS_PER_ROUND: Final = 2
"""Segments that go for a full disk before it is looked at again."""
MAX_CLOCK_DIFFERENCE_MS: Final = 60_000
"""The leader's clock must agree with a majority's within this for messages to go by age."""
MAX_SILENCE_MS: Final = 10_000
"""The disk of a member that has not answered for so long is not looked at: nothing that goes makes room there."""
HOUR_MS: Final = 3_600_000
AHEAD: Final = 0.05
"""Moves begin when so much of the largest log, or of the disk, is left."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Messages older than `max_age_ms` go, so do the oldest beyond `max_log_bytes` (0: no limit), and the oldest of any
    age while a disk is fuller than `disk_max_used_ratio`.
    """

    max_age_ms: int = 72 * HOUR_MS
    max_log_bytes: int = 0
    disk_max_used_ratio: float = 0.75

    def ahead(self) -> RetentionPolicy:
        """What is about to go: what waits there until it is due is moved before it is in the way."""
        return msgspec.structs.replace(
            self,
            max_log_bytes=int(self.max_log_bytes * (1 - AHEAD)),
            disk_max_used_ratio=self.disk_max_used_ratio - AHEAD,
        )


def policy_of(live: LiveConfig) -> RetentionPolicy:
    """What a node is configured to keep."""
    config = live.config
    return RetentionPolicy(
        max_age_ms=config.retention_hours * HOUR_MS,
        max_log_bytes=config.retention_bytes,
        disk_max_used_ratio=config.disk_max_used_ratio,
    )


def fullest_disk_ratio(status: NodeStatus) -> float:
    """How full the fullest voter's disk is, 0 to 1, of those that are heard."""
    heard = (peer.disk_used for peer in status.peers if peer.voter and peer.contact_ms <= MAX_SILENCE_MS)
    return max([status.disk_used, *heard]) / 1000


def clocks_agree(status: NodeStatus) -> bool:
    """True if the leader's clock agrees with those of a majority of the voters, its own included."""
    clocks = [peer.clock_ahead_ms for peer in status.peers if peer.voter]
    agreeing = 1 + sum(ahead is not None and abs(ahead) <= MAX_CLOCK_DIFFERENCE_MS for ahead in clocks)
    return agreeing > (1 + len(clocks)) // 2


def choose_trim(
    segments: Sequence[SegmentInfo],
    candidates: Sequence[int],
    policy: RetentionPolicy,
    *,
    expired_before: int,
    disk_ratio: float,
    pinned: int | None = None,
) -> int | None:
    """The position before which the log should go now, or None.

    What ends at or before `expired_before` is too old. The segment that is being written always stays, and a round
    drops at most `MAX_SEGMENTS_PER_ROUND`, unless the first candidate lies further on: else nothing would ever go. What
    lies at or above `pinned` goes for a full disk only.
    """
    removable = segments[:-1]
    drop = sum(segment.end_position <= expired_before for segment in removable)
    if policy.max_log_bytes:
        kept = sum(segment.end_position - segment.start_position for segment in segments[drop:])
        while drop < len(removable) and kept > policy.max_log_bytes:
            kept -= removable[drop].end_position - removable[drop].start_position
            drop += 1
    if pinned is not None:
        while drop and segments[drop].start_position > pinned:
            drop -= 1
    furthest, drop = drop, min(drop, MAX_SEGMENTS_PER_ROUND)
    if disk_ratio > policy.disk_max_used_ratio:
        furthest, drop = len(removable), max(drop, min(MAX_FORCED_SEGMENTS_PER_ROUND, len(removable)))
    if drop == 0:
        return None
    wanted, limit = segments[drop].start_position, segments[furthest].start_position
    first = min((position for position in candidates if position <= limit), default=None)
    return max((position for position in candidates if position <= wanted), default=first)
