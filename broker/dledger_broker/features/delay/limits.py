"""Limits of the messages that may wait until they are due: their number, and their share of the log.

Pending messages are written again before the log is trimmed. So they must fit the log of the smallest node, beside
everything else. Every node therefore reports to the leader how large its log may become.
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
"""Name of the gossip fact with the maximum size of a node's log."""
LOG_PART: Final = 4
"""Share of the smallest log that may wait: one byte in this many."""
RETRY_FACTOR: Final = 1.25
"""Factor by which messages that consumers send back may exceed both limits."""


class PendingLimits:
    """Check of the limits of pending messages. `too_many` and `too_large` count refusals. Use from the event loop."""

    def __init__(self, log: Log, gossip: Gossip, live: LiveConfig) -> None:
        self.too_many = self.too_large = 0
        self._log = log
        self._gossip = gossip
        self._live = live
        gossip.facts[LOG_BYTES] = self._own_log_bytes

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """Return gauges of the refusals, and of the byte limit, which follows from the nodes' logs."""
        return (
            Gauge("max_pending_timers", "Delayed sends refused because too many messages wait", lambda: self.too_many),
            Gauge(
                "max_pending_timer_bytes",
                "Delayed sends refused because the waiting messages are too large",
                self._too_large,
            ),
            Gauge(
                "timer_bytes_limit",
                "Maximum bytes of the records of messages that are not due yet (leader)",
                lambda: self.max_bytes,
            ),
        )

    def _too_large(self) -> int:
        return self.too_large

    @property
    def max_bytes(self) -> int:
        """Return the maximum bytes that may wait: a quarter of the smallest voter's log, or the configured limit.

        Voters that have been silent for long do not count: refusing messages frees no space on their disks.
        """
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        sizes = [
            log_bytes for node_id, log_bytes in self._gossip.reported_facts(LOG_BYTES).items() if node_id in voters
        ]
        own = self._own_log_bytes()
        smallest = min([*sizes, *([own] if own is not None else [])], default=1 << 62)
        return min(self._live.config.max_pending_timer_bytes or 1 << 60, smallest // LOG_PART)

    def has_room(self, pending: Pending, more: Pending) -> bool:
        """Return whether more messages of producers may wait. A negative answer is not counted as a refusal."""
        return (
            pending.rows + more.rows <= self._live.config.max_pending_timers
            and pending.bytes + more.bytes <= self.max_bytes
        )

    def require_room(self, pending: Pending, more: Pending, *, sent_back: bool) -> None:
        """Raise `ServerError` if more messages may not wait beside `pending`. `sent_back` is True for consumers'."""
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
        """Return the maximum size of this node's log in bytes, by configuration and disk; None if both are unknown.

        A full disk still leaves at least one segment, because the newest segment is never trimmed. Otherwise hardly
        anything could wait while the log is short and other files fill the disk.
        """
        space, limit = self._log.disk_space, self._live.config.retention_bytes
        if space is None:
            return limit or None
        used = space.total_bytes - space.free_bytes
        room = max(0, int(space.total_bytes * self._live.config.disk_max_used_ratio) - used)
        by_disk = max(self._log.end_position - self._log.first_position + room, self._log.segment_bytes)
        return min(by_disk, limit) if limit else by_disk
