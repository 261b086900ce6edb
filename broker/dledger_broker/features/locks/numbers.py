"""Numbers of lock requests: the requests of a client that numbers them (41, 42) take effect in the order of numbers.

A request can be late: a forwarding node holds it, or it is refused as busy and repeated. Two cases are harmful:

1. A client asks for a lock or renews it, then gives the queue up. The request for the lock takes effect last. The lock
   belongs to a member that does not read the queue, and nobody reads it until the lease ends.
2. A client gives a queue up and asks for it again. The release takes effect last, so two members read the queue.

A request for a lock is void if its client has given the lock up under a later number. A release is void if its client
was granted the lock under a later number (`leases.py`). Stock clients send no number. For them the channel decides. The
module is pure: time is an argument. Its state is not replicated.
"""

from __future__ import annotations

from collections import OrderedDict
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
