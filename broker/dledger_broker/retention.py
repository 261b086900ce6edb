"""Retention: the part of the log that goes, by age, by size, by how full the fullest disk is.

Only the leader decides.  It finds the first offset that every queue keeps, has that applied (`TrimQueues`), and then
proposes the trim itself, so that all replicas keep the same range and no queue offset is issued twice.  It also ends
the leases of pins, which keep what their readers still need unless a disk is too full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger.environment import COLD, Cancellable, Environment
from dledger.errors import LogError, NotLeaderError
from dledger.log import Log
from dledger.replica.status import NodeStatus
from dledger.statemachine import Leadership
from dledger.store.log import SegmentInfo
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import DeletePins
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.segment_ages import SegmentAges
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.machine import BrokerMachine

CHECK_PERIOD_S: Final = 10.0
MAX_SEGMENTS_PER_ROUND: Final = 10
MAX_FORCED_SEGMENTS_PER_ROUND: Final = 2
"""Segments that go for a full disk before it is looked at again."""
MAX_CLOCK_DIFFERENCE_MS: Final = 60_000
"""The leader's clock must agree with a majority's within this for messages to go by age."""
MAX_SILENCE_MS: Final = 10_000
"""The disk of a member that has not answered for so long is not looked at: nothing that goes makes room there."""
HOUR_MS: Final = 3_600_000

_logger = logging.getLogger(__name__)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Messages older than `max_age_ms` go, so do the oldest beyond `max_log_bytes` (0: no limit), and the oldest of any
    age while a disk is fuller than `disk_max_used_ratio`.
    """

    max_age_ms: int = 72 * HOUR_MS
    max_log_bytes: int = 0
    disk_max_used_ratio: float = 0.75


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


class Retention:
    """Looks every ten seconds, while this node leads, for what `policy` lets go."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        pins: ProposedPins,
        policy: RetentionPolicy | None = None,
        counters: BrokerCounters | None = None,
    ) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self.pins = pins
        self.policy = policy or RetentionPolicy()
        self._counters = counters or BrokerCounters()
        self._ages = SegmentAges(log, env, lambda: machine.applied_position)
        self._timer: Cancellable | None = None
        self._busy = False
        machine.on_leadership_changed.append(self._on_leadership)

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._env.call_later(CHECK_PERIOD_S, self._on_timer)

    def stop(self) -> None:
        """Stop looking; a trim under way goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_busy(self) -> bool:
        """A trim is under way."""
        return self._busy

    def check(self) -> None:
        """Trim if it is time and nothing is under way."""
        if self._busy or not self._log.is_ready:
            return
        self._end_leases()
        self._complete()
        if clocks_agree(self._log.status()):
            self._ages.ask_expired(self._env.wall_ms(), self.policy.max_age_ms, self._trim_if_due)
        else:
            self._trim_if_due(0)

    def _trim_if_due(self, expired_before: int) -> None:
        if self._busy or not self._log.is_ready:
            return
        pinned = self.pins.lowest(self._env.wall_ms())
        position = choose_trim(
            self._log.segments(),
            self._log.trim_candidates(),
            self.policy,
            expired_before=expired_before,
            disk_ratio=fullest_disk_ratio(self._log.status()),
            pinned=pinned,
        )
        if position is not None:
            if pinned is not None and position > pinned:
                self._counters.pins_overridden += 1
                _logger.warning(
                    "event=pin_overridden position=%d pinned=%d reason='the disk is too full'", position, pinned
                )
            self.trim(position)

    def _complete(self) -> None:
        """Go on with a trim of which queues were told and the log was not, because its leader was lost or it failed.

        It may not have come to all queues either, so it begins anew; not above a pin, which a full disk overrode.
        """
        if self._busy:
            return
        told, first = self._machine.state.trims.before, self._log.first_position
        pinned = self.pins.lowest(self._env.wall_ms())
        limit = told if pinned is None else min(told, pinned)
        left = [position for position in self._log.trim_candidates() if first < position <= limit]
        if left:
            self.trim(max(left))

    def _end_leases(self) -> None:
        """Give up the pins that nobody has renewed."""
        names = self.pins.expired(self._env.wall_ms())
        if names and self._machine.understood_by_all(DeletePins):
            self.pins.delete(names, _tried_again)

    def trim(self, position: int) -> None:
        """Leader: have the log below `position`, one of its trim candidates, dropped by every replica."""
        self._busy = True
        self._machine.trim_under_way = position
        searches: list[tuple[str, int, int, Callable[[], int]]] = [
            (name, topic.created_position, queue.queue_id, self._machine.queues.first_kept(queue.view, position))
            for name, topic in self._machine.state.topics.items()
            for queue in topic.queues.values()
            if queue.min_offset < queue.max_offset
        ]

        def work() -> tuple[tuple[str, int, int, int], ...]:
            return tuple((name, created, queue_id, search()) for name, created, queue_id, search in searches)

        self._env.run_blocking(COLD, work, partial(self._found, position, self._machine.leadership.term))

    def _found(self, position: int, term: int, rows: tuple[tuple[str, int, int, int], ...] | BaseException) -> None:
        leadership = self._machine.leadership
        if not isinstance(rows, BaseException) and leadership.term != term:
            # A leader of the terms between may have taken pins that the position lies above.
            rows = NotLeaderError(leadership.leader_id, leadership.term)
        if isinstance(rows, BaseException):
            self._machine.trim_under_way = 0
            self._finish(position, rows)
            return
        starts = range(0, max(len(rows), 1), MAX_OFFSETS_PER_COMMAND)
        for start in starts[:-1]:
            outcomes: list[LogError | None] = []
            command = TrimQueues(position, rows[start : start + MAX_OFFSETS_PER_COMMAND])
            self._machine.stage_command(command, outcomes.append, privileged=True)
            if outcomes and outcomes[0] is not None:  # refused, though a smaller one behind it might be taken
                self._finish(position, outcomes[0])
                return
        last = TrimQueues(position, rows[starts[-1] :])
        self._machine.stage_command(last, partial(self._decided, position), privileged=True)

    def _decided(self, position: int, error: LogError | None) -> None:
        if error is None:
            self._machine.trim_under_way = 0  # it is in the state
            try:
                self._log.trim(position)
            except LogError as refused:
                error = refused
        self._finish(position, error)

    def _finish(self, position: int, error: BaseException | None) -> None:
        self._busy = False
        if error is None:
            _logger.info("event=trim position=%d", position)
        else:
            _logger.warning("event=trim_failed position=%d error=%r", position, str(error))

    def _on_leadership(self, leadership: Leadership) -> None:
        if leadership.ready:
            self._complete()

    def _on_timer(self) -> None:
        self._timer = self._env.call_later(CHECK_PERIOD_S, self._on_timer)
        self.check()


def _tried_again(_error: object) -> None:
    """The next look finds what is still there."""
