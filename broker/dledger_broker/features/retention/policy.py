"""Choice of the part of the log to drop: by age or size, and the oldest part on a full disk if configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from dledger.replica.status import NodeStatus
from dledger.store.log import SegmentInfo
from dledger_broker.kernel.live_config import LiveConfig

MAX_SEGMENTS_PER_ROUND: Final = 10
MAX_FORCED_SEGMENTS_PER_ROUND: Final = 2
"""Maximum number of unexpired segments that are dropped for a full disk before the disk is checked again."""
MAX_CLOCK_DIFFERENCE_MS: Final = 60_000
"""Maximum difference between the leader's clock and a majority's clocks at which messages expire by age."""
MAX_SILENCE_MS: Final = 10_000
"""Maximum time since a member's last answer for which its disk counts. Trims make no room on a silent member."""
HOUR_MS: Final = 3_600_000
AHEAD: Final = 0.05
"""Share of the largest log, or of the disk, that is left when moves of waiting messages begin."""


REFUSE: Final = "refuse"
DELETE_OLDEST: Final = "delete-oldest"
WHEN_FULL: Final = (REFUSE, DELETE_OLDEST)
"""Values of `when_full`."""

BY_AGE: Final = "retention_hours"
BY_SIZE: Final = "retention_bytes"
BY_DISK: Final = "when_full"
BEGUN_BEFORE: Final = "begun_before"
REASONS: Final = (BY_AGE, BY_SIZE, BY_DISK, BEGUN_BEFORE)
"""Reasons of a trim: the responsible key, or that an earlier leader had begun the trim."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of retention.

    Messages older than `max_age_ms` have expired, and so have the oldest messages beyond `max_log_bytes` (0: no limit).
    While a disk is fuller than `disk_max_used_ratio`, the watermark, expired messages are dropped at once, even if
    pinned. Other messages are dropped only with `when_full` = "delete-oldest", while a disk is fuller than
    `delete_oldest_ratio`.
    """

    max_age_ms: int = 72 * HOUR_MS
    max_log_bytes: int = 0
    disk_max_used_ratio: float = 0.75
    when_full: str = REFUSE
    delete_oldest_ratio: float = 0.85

    def ahead(self) -> RetentionPolicy:
        """Return stricter rules, by which waiting messages are moved before they are in the way of a trim."""
        return msgspec.structs.replace(
            self,
            max_log_bytes=int(self.max_log_bytes * (1 - AHEAD)),
            disk_max_used_ratio=self.disk_max_used_ratio - AHEAD,
            delete_oldest_ratio=self.delete_oldest_ratio - AHEAD,
        )

    def deletes_oldest(self, disk_ratio: float) -> bool:
        """Return whether a disk this full causes unexpired messages to be dropped, including messages that wait."""
        return self.when_full == DELETE_OLDEST and disk_ratio > self.delete_oldest_ratio


class TrimPart(NamedTuple):
    """Part of a trim: everything below `end` that no earlier part has, for one reason."""

    reason: str
    end: int


def policy_of(live: LiveConfig) -> RetentionPolicy:
    """Return the retention policy in a node's configuration."""
    config = live.config
    return RetentionPolicy(
        max_age_ms=config.retention_hours * HOUR_MS,
        max_log_bytes=config.retention_bytes,
        disk_max_used_ratio=config.disk_max_used_ratio,
        when_full=config.when_full,
        delete_oldest_ratio=config.delete_oldest_ratio,
    )


def fullest_disk_ratio(status: NodeStatus) -> float:
    """Return the used share, 0 to 1, of the fullest disk among the voters that answer."""
    of_peers = (peer.disk_used for peer in status.peers if peer.voter and peer.contact_ms <= MAX_SILENCE_MS)
    return max([status.disk_used, *of_peers]) / 1000


def clocks_agree(status: NodeStatus) -> bool:
    """Return whether the leader's clock agrees with a majority of the voters' clocks, its own included."""
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
    needed: int | None = None,
) -> int | None:
    """Return the position below which the log should be dropped now, or None.

    Segments that end at or before `expired_before` are too old. The segment that is being written always stays. While
    there is space, a round drops at most `MAX_SEGMENTS_PER_ROUND`, unless the first candidate lies further on, or no
    round would ever drop anything. The log from `pinned` on stays, unless it has expired and a disk is above the
    watermark. The log from `needed` on stays, unless a disk is so full that the oldest messages are dropped.
    """
    removable = segments[:-1]
    furthest = _expired(segments, policy, expired_before)[1]
    deletes_oldest = policy.deletes_oldest(disk_ratio)
    if disk_ratio > policy.disk_max_used_ratio:
        round_limit = len(removable)
    else:
        round_limit = MAX_SEGMENTS_PER_ROUND
        furthest = _held(segments, furthest, pinned)
    if not deletes_oldest:
        furthest = _held(segments, furthest, needed)
    drop = min(furthest, round_limit)
    if deletes_oldest:
        furthest = max(furthest, _held(segments, len(removable), pinned))
        drop = max(drop, min(MAX_FORCED_SEGMENTS_PER_ROUND, furthest))
    if drop == 0:
        return None
    wanted, limit = segments[drop].start_position, segments[furthest].start_position
    first = min((position for position in candidates if position <= limit), default=None)
    return max((position for position in candidates if position <= wanted), default=first)


def parts_of_trim(
    segments: Sequence[SegmentInfo], policy: RetentionPolicy, *, expired_before: int, position: int
) -> tuple[TrimPart, ...]:
    """Return the parts of a trim below `position`, by reason, oldest first."""
    old, expired = (segments[count].start_position for count in _expired(segments, policy, expired_before))
    parts: list[TrimPart] = []
    begin = segments[0].start_position
    for reason, limit in ((BY_AGE, old), (BY_SIZE, expired), (BY_DISK, position)):
        end = min(limit, position)
        if end > begin:
            parts.append(TrimPart(reason, end))
            begin = end
    return tuple(parts)


def _expired(segments: Sequence[SegmentInfo], policy: RetentionPolicy, expired_before: int) -> tuple[int, int]:
    """Return the number of segments that are too old, and the number that have expired by age or by size."""
    removable = segments[:-1]
    old = expired = sum(segment.end_position <= expired_before for segment in removable)
    if policy.max_log_bytes:
        kept = sum(segment.end_position - segment.start_position for segment in segments[old:])
        while expired < len(removable) and kept > policy.max_log_bytes:
            kept -= removable[expired].end_position - removable[expired].start_position
            expired += 1
    return old, expired


def _held(segments: Sequence[SegmentInfo], drop: int, needed_from: int | None) -> int:
    """Return how many of the first `drop` segments may be dropped if the log is needed from a position on."""
    if needed_from is not None:
        while drop and segments[drop].start_position > needed_from:
            drop -= 1
    return drop
