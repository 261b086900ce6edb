"""Bugs of queue locks."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.statemachine import CommittedEntry
from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.features.locks.leases import Leases, RequestNumber
from dledger_broker.features.locks.table import DeleteLocks, DeleteRow, LockKey, LockTable, Owner
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.tables import Changes
from dledger_sim.brokers.schedules import locks
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("locks")


def _tell_at_once(
    self: LockChanges,
    group: str,
    keys: Sequence[LockKey],
    owner: Owner,
    channel: str,
    number: RequestNumber | None,
    done: Done,
) -> None:
    _real_acquire(self, group, keys, owner, channel, number, lambda _: None)
    done(None)


_real_acquire = LockChanges.acquire

CATALOGUE.add(
    "lock-granted-when-proposed",
    "a lock is granted by the applied state, never by a proposal",
    (LockChanges, "acquire", _tell_at_once),
    (LockChanges, "is_granted", lambda self, key, owner: self.owner(key) == owner),
    schedule=locks.lock_from_a_leader_that_is_cut_off,
)


def _begin_without_leases(self: Leases, now: float) -> None:
    self._leases.clear()
    self._restart_until = now


CATALOGUE.add(
    "lease-ends-with-its-leader",
    "a new leader starts every lease anew",
    (Leases, "begin", _begin_without_leases),
    schedule=locks.lock_at_a_new_leader,
)


def _release_over_the_last_channel(
    self: Leases, key: LockKey, owner: Owner, channel: str, now: float, release: RequestNumber | None = None
) -> bool:
    _ = now, release
    lease = self._leases.get(key)
    return lease is not None and lease.owner == owner and lease.channel == channel


CATALOGUE.add(
    "lock-released-over-the-last-channel",
    "a release counts once no client relies any more on locks that were granted over another channel",
    (Leases, "may_release", _release_over_the_last_channel),
    schedule=locks.late_release_from_an_earlier_connection,
)


def _release_whatever_its_number(
    self: Leases, key: LockKey, owner: Owner, channel: str, now: float, release: RequestNumber | None = None
) -> bool:
    lease = self._leases.get(key)
    if release is not None and lease is not None and lease.owner == owner:
        return True
    return _real_may_release(self, key, owner, channel, now, release)


_real_may_release = Leases.may_release

CATALOGUE.add(
    "lock-released-by-a-lower-number",
    "a numbered release is void if the lock was granted under a later number",
    (Leases, "may_release", _release_whatever_its_number),
    schedule=locks.late_release_with_a_lower_number,
)


def _end_with_topic(self: Changes, topic: TopicState) -> None:
    _real_topic_deleted(self, topic)
    for table in self._tables:
        if isinstance(table, LockTable):
            ended = (DeleteRow(*key, owner) for key, owner in table if key.topic == topic.config.topic_name)
            table.apply(DeleteLocks(tuple(ended)), CommittedEntry(0, 0, 0, b"", b""), self)


_real_topic_deleted = Changes.topic_deleted

CATALOGUE.add(
    "lock-ends-with-its-topic",
    "a lock outlives its topic until its lease ends",
    (Changes, "topic_deleted", _end_with_topic),
    schedule=locks.lock_on_a_topic_that_is_deleted,
)


def _begin_once(
    self: Leases,
    key: LockKey,
    owner: Owner,
    channel: str,
    now: float,
    asked: RequestNumber | None = None,
    *,
    is_owned: bool,
) -> None:
    lease = self._leases.get(key)
    if lease is None or lease.owner != owner:
        _real_extend(self, key, owner, channel, now, asked, is_owned=is_owned)


_real_extend = Leases.extend

CATALOGUE.add(
    "lease-not-renewed",
    "a lease runs from its owner's last request that was granted",
    (Leases, "extend", _begin_once),
    schedule=locks.lock_that_is_renewed,
)

CATALOGUE.add(
    "lease-never-ends",
    "a lock that is not renewed is free once its lease is over",
    (Leases, "runs", lambda _self, _key, _owner, _now: True),
)
