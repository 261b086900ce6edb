"""Leases of queue locks: how long an owner may go on without renewing, by this leader's monotonic clock.

A client believes in a lock for `BELIEF_S` after it has *sent* a request that is granted. Nothing of a lease is
replicated: a leader that is new knows no renewals, and has every lease start anew. Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_broker.features.locks.table import LockKey, Owner

BELIEF_S: Final = 31.0
"""RocketMQ's clients: 30 s from the answer, for which they wait a second."""
LEASE_S: Final = 60.0
ANEW_S: Final = 35.0
"""Lease at a new leader, and how long a channel is watched: a belief, and room for clocks that run at other speeds."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds that a lease runs from a request that is granted, and that each runs anew at a new leader."""

    lease_s: float = LEASE_S
    anew_s: float = ANEW_S


@dataclass(slots=True)
class _Lease:
    owner: Owner
    channel: str
    """Over which the last request came that was granted."""
    expires: float
    shared_until: float
    """Until then the owner may believe in what it was granted over another channel."""


class Leases:
    """Of all locks, since this node became the leader. `begin` comes first."""

    def __init__(self) -> None:
        self.times = LeaseTimes()
        self._leases: dict[LockKey, _Lease] = {}
        self._anew_until = 0.0

    def begin(self, now: float) -> None:
        """This node is ready as the leader: whatever was granted until now may be believed in for `BELIEF_S`."""
        self._leases.clear()
        self._anew_until = now + self.times.anew_s

    def runs(self, key: LockKey, owner: Owner, now: float) -> bool:
        """True while the owner of a lock may believe in it."""
        lease = self._leases.get(key)
        return now < (self._anew_until if lease is None or lease.owner != owner else lease.expires)

    def extend(self, key: LockKey, owner: Owner, channel: str, now: float, *, is_owned: bool) -> None:
        """A request over `channel` that came at `now` is about to be granted; `is_owned` if `owner` has it by now."""
        lease = self._leases.get(key)
        if lease is not None and lease.owner == owner:
            if lease.channel != channel:
                lease.channel, lease.shared_until = channel, now + self.times.anew_s
            lease.expires = now + self.times.lease_s
        else:
            shared_until = self._anew_until if is_owned else now
            self._leases[key] = _Lease(owner, channel, now + self.times.lease_s, shared_until)

    def may_release(self, key: LockKey, owner: Owner, channel: str, now: float) -> bool:
        """True if a release over `channel` says what its owner wants *now*.

        1. A client asks over channel 1 for a lock and gives it up; both requests are under way for long.
        2. It connects again, asks over channel 2 and is granted the lock.
        3. The two requests from channel 1 arrive. The first is taken for a renewal. Were the second one followed, the
           next client that asks would consume beside this one.

        So a release counts only over the channel of the last request that was granted, and only when all that was
        granted over another one, here or by an earlier leader, is believed in no more.
        """
        lease = self._leases.get(key)
        return lease is not None and lease.owner == owner and lease.channel == channel and now >= lease.shared_until

    def forget(self, key: LockKey) -> None:
        """Nobody has the lock any more."""
        self._leases.pop(key, None)
