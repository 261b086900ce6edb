"""Limits of what may wait until it is due: a number of messages, and a part of what the log may have.

What waits is written again before the log is trimmed: it has to fit the log of the smallest node, beside all else. So
every node tells the leader how much its own log may have.
"""

from __future__ import annotations

from typing import Final

from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.delay.table import Pending
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.parts import Gauge
from dledger_remoting.errors import ServerError

LOG_BYTES: Final = "log_bytes"
"""The fact by which nodes tell how large their logs may become."""
LOG_PART: Final = 4
"""One byte in so many of the smallest log may wait."""
RETRY_FACTOR: Final = 1.25
"""What consumers send back may go beyond both limits by this."""


class PendingLimits:
    """Use from the event loop; `too_many` and `too_large` count what was refused."""

    def __init__(self, log: Log, gossip: Gossip, live: LiveConfig) -> None:
        self.too_many = self.too_large = 0
        self._log = log
        self._gossip = gossip
        self._live = live
        gossip.facts[LOG_BYTES] = self._own_log_bytes

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """What was refused, and the limit that nobody has configured."""
        return (
            Gauge("max_pending_timers", "Delayed sends refused because too many wait", lambda: self.too_many),
            Gauge("max_pending_timer_bytes", "Delayed sends refused because what waits is too large", self._too_large),
            Gauge("timer_bytes_limit", "How many bytes of the log may wait (leader)", lambda: self.max_bytes),
        )

    def _too_large(self) -> int:
        return self.too_large

    @property
    def max_bytes(self) -> int:
        """How many bytes may wait: a quarter of the smallest voter's log, and what is configured if that is less.

        Voters that have been silent for long are left out: nothing that is refused makes room there.
        """
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        told = [log_bytes for node_id, log_bytes in self._gossip.told(LOG_BYTES).items() if node_id in voters]
        own = self._own_log_bytes()
        smallest = min([*told, *([own] if own is not None else [])], default=1 << 62)
        return min(self._live.config.max_pending_timer_bytes or 1 << 60, smallest // LOG_PART)

    def has_room(self, pending: Pending, more: Pending) -> bool:
        """Whether more may wait that producers send; nothing is counted as refused."""
        return (
            pending.rows + more.rows <= self._live.config.max_pending_timers
            and pending.bytes + more.bytes <= self.max_bytes
        )

    def require_room(self, pending: Pending, more: Pending, *, sent_back: bool) -> None:
        """Raise `ServerError` if more may not wait; `pending` is what does, `sent_back`: a consumer's."""
        factor = RETRY_FACTOR if sent_back else 1.0
        rows, size = pending.rows + more.rows, pending.bytes + more.bytes
        if rows > self._live.config.max_pending_timers * factor:
            self.too_many += 1
            raise ServerError(
                f"{pending.rows} messages wait until they are due, max_pending_timers is "
                f"{self._live.config.max_pending_timers}: send without a delay, or later, or raise it"
            )
        max_bytes = self.max_bytes
        if size > max_bytes * factor:
            self.too_large += 1
            raise ServerError(
                f"{pending.bytes} bytes of messages wait until they are due, the limit is {max_bytes}, a quarter of "
                "what the smallest node may keep of the log or max_pending_timer_bytes: send without a delay, or "
                "later, or have the nodes keep more (a disk fuller than disk_max_used_ratio leaves the log little)"
            )

    def _own_log_bytes(self) -> int | None:
        """How large this node's log may become, by what is configured and what its disk has.

        One segment at least, which no disk is too full for: the newest one is never trimmed away. Else next to nothing
        could wait on a disk that others have filled, for as long as the log is short.
        """
        space, limit = self._log.disk_space, self._live.config.retention_bytes
        if space is None:
            return limit or None
        used = space.total_bytes - space.free_bytes
        room = max(0, int(space.total_bytes * self._live.config.disk_max_used_ratio) - used)
        by_disk = max(self._log.end_position - self._log.first_position + room, self._log.segment_bytes)
        return min(by_disk, limit) if limit else by_disk
