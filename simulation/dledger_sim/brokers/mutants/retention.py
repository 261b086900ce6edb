"""Bugs of retention: messages that must be kept are deleted."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.store.log import SegmentInfo
from dledger_broker.features.delay.moving import TimerMover
from dledger_broker.features.retention import policy
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_sim.brokers.schedules import full_disks
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("crowds")


def _count_what_expired(segments: Sequence[SegmentInfo], kept: RetentionPolicy, expired_before: int) -> tuple[int, int]:
    old, _ = _real_expired(segments, kept, expired_before)
    whole = _real_expired(segments, kept, 0)[1]
    return old, min(old + whole, len(segments) - 1)


_real_expired = policy._expired  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "retention-counts-what-expired",
    "retention_bytes limits the kept log: messages that expire by age do not count",
    (policy, "_expired", _count_what_expired),
    schedule=full_disks.both_limits_at_once,
)


def _delete_above_the_watermark(self: RetentionPolicy, disk_ratio: float) -> bool:
    return disk_ratio > self.disk_max_used_ratio


CATALOGUE.add(
    "watermark-deletes",
    "a full disk causes no deletion of unexpired messages, unless the configuration deletes the oldest messages",
    (RetentionPolicy, "deletes_oldest", _delete_above_the_watermark),
    schedule=full_disks.others_fill_all_disks,
)


def _give_up_whenever_full(self: TimerMover, position: int, *, disk_full: bool, give_up: bool = False) -> None:
    _real_request(self, position, disk_full=disk_full, give_up=disk_full or give_up)


_real_request = TimerMover.request

CATALOGUE.add(
    "waiting-given-up-though-refused",
    "if sends are refused on a full disk, no waiting message is given up",
    (TimerMover, "request", _give_up_whenever_full),
    schedule=full_disks.a_log_without_room_for_what_waits,
)
