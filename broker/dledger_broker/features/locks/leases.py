"""Leases of queue locks: how long an owner keeps a lock without renewing it, by this leader's monotonic clock.

A client believes in a lock for up to `BELIEF_S` after it *sent* a request that was granted. Leases are not replicated.
A new leader knows no renewals, so it lets every lease run anew. The module is pure: time is an argument.

A request can be late: a forwarding node holds it, or it is refused as busy and repeated. Two cases are harmful:

1. A client asks for a lock or renews it, then gives the queue up. The request for the lock takes effect last. The lock
   belongs to a member that does not read the queue, and nobody reads it until the lease ends.
2. A client gives a queue up and asks for it again. The release takes effect last, so two members read the queue.

A request for a lock is void if its client has given the lock up under a later number. A release is void if its client
was granted the lock under a later number. Stock clients send no number. For them the channel decides. Numbers are not
replicated either.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from dledger_broker.features.locks.table import LockKey, Owner

LATE_S: Final = 60.0
"""Time in seconds for which a release is remembered. Nothing repeats a request for longer."""
MAX_REMEMBERED: Final = 100_000
"""Maximum number of releases that are remembered. Beyond it the oldest is forgotten."""


class RequestNumber(NamedTuple):
    """Number of a request within a session, which is one run of a client. Sessions cannot be compared."""

    session: str
    number: int


class ReleaseHistory:
    """Memory of the last numbered release of each lock and owner."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[LockKey, Owner], tuple[RequestNumber, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def note(self, key: LockKey, owner: Owner, release: RequestNumber, now: float) -> None:
        """Remember a release, and forget releases that are too old."""
        last = self._last.pop((key, owner), None)
        if last is not None and last[0].session == release.session:
            release = max(last[0], release)
        self._last[key, owner] = release, now + LATE_S
        while len(self._last) > MAX_REMEMBERED or next(iter(self._last.values()))[1] < now:
            self._last.popitem(last=False)

    def is_released(self, key: LockKey, owner: Owner, request: RequestNumber | None) -> bool:
        """Return whether a request for a lock arrived after a release that its client sent later."""
        last = self._last.get((key, owner))
        if request is None or last is None:
            return False
        return last[0].session == request.session and request.number < last[0].number


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
