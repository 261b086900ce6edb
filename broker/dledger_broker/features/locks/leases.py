"""Leases of queue locks: how long an owner keeps a lock without renewing it, by this leader's monotonic clock.

A client believes in a lock for up to `BELIEF_S` after it *sent* a request that was granted. Leases are not replicated.
A new leader knows no renewals, so it lets every lease run anew. The module is pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_broker.features.locks.numbers import RequestNumber
from dledger_broker.features.locks.table import LockKey, Owner

BELIEF_S: Final = 31.0
"""Maximum time in seconds that a client believes in a lock, from sending the request.

RocketMQ's clients believe in a lock for 30 s from the answer, and wait at most 1 s for the answer.
"""
LEASE_S: Final = 60.0
"""Time in seconds from a granted request for which a lease runs."""
ANEW_S: Final = 35.0
"""Time in seconds that leases run anew at a new leader, and that earlier grants may still be believed in.

Earlier grants were made over another channel, in another session or by an earlier leader. The time is `BELIEF_S` with a
margin for clocks that run at different speeds.
"""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Lengths of leases: seconds from a granted request, and seconds that each lease runs anew at a new leader."""

    lease_s: float = LEASE_S
    anew_s: float = ANEW_S


@dataclass(slots=True)
class _Lease:
    owner: Owner
    channel: str
    """Channel of the last granted request."""
    expires: float
    shared_until: float
    """Time until which the owner may believe in grants over another channel."""
    number: RequestNumber | None
    """Number of the last granted request, None if it was not numbered."""
    mixed_until: float
    """Time until which the owner may believe in grants of another session, or of an earlier leader."""


class Leases:
    """Leases of all locks, since this node became the leader. Call `begin` first."""

    def __init__(self) -> None:
        self.times = LeaseTimes()
        self._leases: dict[LockKey, _Lease] = {}
        self._restart_until = 0.0

    def begin(self, now: float) -> None:
        """Start anew, since this node is ready as the leader. Earlier grants may be believed in for `BELIEF_S`."""
        self._leases.clear()
        self._restart_until = now + self.times.anew_s

    def runs(self, key: LockKey, owner: Owner, now: float) -> bool:
        """Return whether the owner of a lock may believe in it."""
        lease = self._leases.get(key)
        return now < (self._restart_until if lease is None or lease.owner != owner else lease.expires)

    def extend(
        self,
        key: LockKey,
        owner: Owner,
        channel: str,
        now: float,
        number: RequestNumber | None = None,
        *,
        is_owned: bool,
    ) -> None:
        """Start or extend the lease of a request that arrived over `channel` at `now` and is about to be granted.

        `is_owned` is True if `owner` has the lock already. `number` is the number of the request, if it is numbered.
        """
        lease = self._leases.get(key)
        if lease is not None and lease.owner == owner:
            if lease.channel != channel:
                lease.channel, lease.shared_until = channel, now + self.times.anew_s
            if _session(lease.number) != _session(number):
                lease.number, lease.mixed_until = number, now + self.times.anew_s
            elif lease.number is not None and number is not None:
                lease.number = max(lease.number, number)
            lease.expires = now + self.times.lease_s
        else:
            believed_until = self._restart_until if is_owned else now
            self._leases[key] = _Lease(owner, channel, now + self.times.lease_s, believed_until, number, believed_until)

    def may_release(
        self, key: LockKey, owner: Owner, channel: str, now: float, release: RequestNumber | None = None
    ) -> bool:
        """Return whether a release over `channel` is current, so that it may end the lock.

        Without numbers only the channel shows the order:

        1. A client asks over channel 1 for a lock and gives it up. Both requests are delayed.
        2. It connects again, asks over channel 2 and is granted the lock.
        3. The two requests from channel 1 arrive. The first is taken for a renewal. If the second ended the lock, the
           next client to request it would consume beside this client.

        So a release without a number must satisfy two conditions. It arrives over the channel of the last granted
        request. The owner no longer believes in any grant over another channel or by an earlier leader.

        A release with a number may arrive over any channel. The last granted request must be of the same session and
        have a lower number. The owner must no longer believe in any grant of another session or by an earlier leader.
        If the last granted request had no number, the conditions without numbers apply.
        """
        lease = self._leases.get(key)
        if lease is None or lease.owner != owner:
            return False
        if release is not None and lease.number is not None:
            is_later = lease.number.session == release.session and lease.number.number < release.number
            return is_later and now >= lease.mixed_until
        return lease.channel == channel and now >= lease.shared_until

    def forget(self, key: LockKey) -> None:
        """Forget the lease of a lock that nobody owns any more."""
        self._leases.pop(key, None)


def _session(numbered: RequestNumber | None) -> str | None:
    return None if numbered is None else numbered.session
