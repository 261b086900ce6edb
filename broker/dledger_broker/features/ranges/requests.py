"""Requests that read the log itself: plans (20010), raw ranges (20011), and the committed position (20012).

Every node serves what it has applied, in its present role. It refuses a read that it cannot serve, or that its reader
does not want from this role. The reader then turns to another node. The disk is read on the cold lane, one range at a
time, to leave room for other readers. `pace.py` limits the rate, to leave room for sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from dledger.environment import Environment, slept
from dledger.errors import CorruptionError, TrimmedError
from dledger.format import parse_run
from dledger.log import Log
from dledger.store.ranges import EntryRun, LogCut
from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.ranges.pace import RangePace
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_broker.kernel.segment_ages import newest_store_time
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import (
    InvalidParameter,
    ReadBehind,
    ReadTrimmed,
    ServiceNotAvailable,
    SystemBusy,
)
from dledger_remoting.headers import (
    ReadCommitResponseHeader,
    ReadPlanHeader,
    ReadRangeHeader,
    ReadRangeResponseHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_range import MAX_RANGE_BYTES, MIN_SLICE_BYTES
from dledger_remoting.range_reads import Cut, PlannedQueue, PlannedTopic, ReadPlan
from dledger_remoting.record import STORE_TIMESTAMP_PLACE

MAX_WAITING_READS: Final = 256
"""Maximum number of plans and ranges that wait for the disk. A further request is answered with code 2."""
CATCH_UP_S: Final = 2.0
"""Time limit for this node to apply the entries that a read requests."""
POLL_S: Final = 0.01


_LOG: Final = (rights.cluster(Action.LOG),)
"""Rights for these requests: ranges contain the records of all topics, and all commands."""


class RangeRequests(Part):
    """Handler of plans and range reads, in tasks."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        group: LeadershipView,
        group_name: str,
        counters: BrokerCounters,
        requests: Requests,
        pins: PinRequests,
        roles: Roles,
        pace: RangePace,
    ) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._group = group
        self._group_name = group_name
        self._counters = counters
        self._requests = requests
        self._pins = pins
        self._roles = roles
        self._pace = pace
        self._disk = asyncio.Semaphore(1)
        self._waiting = 0

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.READ_PLAN: Route(self.plan, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=_LOG),
            RequestCode.READ_RANGE: Route(self.read, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=_LOG),
            RequestCode.READ_COMMIT: Route(self.commit, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_LOG),
        }

    def commit(self, request: Request) -> None:
        """Answer with the position up to which this confirmed leader has applied the log (20012)."""
        header = ReadCommitResponseHeader(
            self._group_name,
            self._group.node_id,
            self._roles.present,
            self._group.term,
            self._machine.applied_position,
            self._log.group_identity or None,
        )
        request.respond(ext=encode_ext(header))

    def plan(self, request: Request) -> None:
        """Answer with the part of the log that can be read, and where to cut it (20010)."""
        header = decode_ext(ReadPlanHeader, request.ext)
        if header.start_position < 0:
            raise InvalidParameter(f"startPosition {header.start_position} is below 0")
        self._roles.require(header.roles)
        self._roles.require_group(header.group_identity)
        self._requests.spawn(request, self._plan(request, header))

    def read(self, request: Request) -> None:
        """Answer with raw entries (20011)."""
        header = decode_ext(ReadRangeHeader, request.ext)
        if not 0 <= header.start <= header.end:
            raise InvalidParameter(f"start {header.start} and end {header.end} are no range of the log")
        self._roles.require(header.roles)
        self._roles.require_group(header.group_identity)
        if header.pin is not None:
            self._pins.renew_by_read(header.pin)
        self._requests.spawn(request, self._read(request, header))

    # ---------------------------------------------------------------- inside

    async def _until_applied(self, position: int) -> None:
        """Wait up to `CATCH_UP_S` until everything below a position is applied here, or raise."""
        if not await self._wait_for(lambda: self._machine.applied_position >= position):
            raise self._roles.behind(position)

    async def _ordinal(self) -> int:
        """Return the group's ordinal. The first leader of a group records the ordinal in its first moments."""
        await self._wait_for(lambda: self._machine.state.members.ordinal is not None)
        ordinal = self._machine.state.members.ordinal
        if ordinal is None:
            raise ServiceNotAvailable(
                f"the ordinal of group {self._group_name} is not recorded yet: every member must have been there once"
            )
        return ordinal

    async def _wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for at most `CATCH_UP_S`, and return whether the condition came true."""
        deadline = self._env.now() + CATCH_UP_S
        while not condition():
            if self._env.now() >= deadline:
                return False
            await slept(self._env, POLL_S)
        return True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the disk, or refuse. No other range is read during this turn."""
        if self._waiting >= MAX_WAITING_READS:
            raise SystemBusy(f"[OVERLOAD]{self._waiting} range reads wait for the disk, which is the limit")
        self._waiting += 1
        try:
            await self._disk.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._disk.release()

    async def _plan(self, request: Request, header: ReadPlanHeader) -> None:
        await self._until_applied(header.min_commit)
        ordinal = await self._ordinal()
        commit, topics = self._machine.applied_position, self._topics(header.topics)
        role, term, first_position = self._roles.present, self._group.term, self._log.first_position
        try:
            async with self._turn():
                log_cuts = await self._log.cuts(header.start_position, commit, max(header.slice_bytes, MIN_SLICE_BYTES))
            ends = [*(cut.position for cut in log_cuts[1:]), commit]
            cuts = [
                await self._describe_cut(cut, end, times=header.times) for cut, end in zip(log_cuts, ends, strict=False)
            ]
            if self._log.first_position != first_position:
                raise TrimmedError(f"it began at {first_position}, and begins at {self._log.first_position} now")
        except TrimmedError as error:
            raise ReadBehind(f"the log was trimmed while it was planned, plan again: {error}") from error
        plan = ReadPlan(
            self._group_name, ordinal, self._group.node_id, role, term, first_position, commit, cuts, topics
        )
        self._requests.respond(request, encode_body(plan))

    def _topics(self, names: str | None) -> list[PlannedTopic]:
        topics = self._machine.state.topics
        wanted = topics if names is None else dict.fromkeys(name for name in names.split(",") if name in topics)
        return [_planned(topics[name]) for name in wanted]

    async def _describe_cut(self, cut: LogCut, end: int, *, times: bool) -> Cut:
        """Return a cut for the plan, with the store times up to the next cut.

        Within a term, store times never go back.
        """
        low = high = None
        if times:
            async with self._turn():
                for span in await self._log.record_spans(cut.position, end):
                    first = int.from_bytes(await self._log.read(span.first_position + STORE_TIMESTAMP_PLACE, 8), "big")
                    records = await self._log.read(span.last_position, span.last_size)
                    last = newest_store_time(records)
                    low = first if low is None else min(low, first)
                    high = last if high is None else max(high, last)
        return Cut(cut.position, cut.index, cut.previous_chain, low, high)

    def _verify(self, run: EntryRun, start: int) -> None:
        """Raise `ReadBehind` and have the log repaired if entries do not verify."""
        try:
            parse_run(run.data, None)
        except CorruptionError as error:
            self._log.read_failed(start)
            raise ReadBehind(f"entries from position {start} on do not verify here: {error}") from error

    async def _read(self, request: Request, header: ReadRangeHeader) -> None:
        await self._until_applied(max(header.min_commit, header.end))
        turn = self._pace.turn(max(1, min(header.max_bytes, MAX_RANGE_BYTES)))
        if turn.hold_s:
            self._counters.range_reads_held += 1
            await slept(self._env, turn.hold_s)
        try:
            async with self._turn():
                self._roles.require(header.roles)
                run = await self._log.read_run(header.start, header.end, turn.max_bytes)
            if header.verify:
                self._verify(run, header.start)
        except TrimmedError as error:
            self._counters.range_reads_refused += 1
            raise ReadTrimmed(f"node {self._group.node_id} no longer keeps it: {error}") from error
        except ValueError as error:
            raise InvalidParameter(f"start: {error}") from error
        self._pace.served(turn, len(run.data))
        role = self._roles.present
        self._counters.count_range_read(role, len(run.data))
        answer = ReadRangeResponseHeader(
            self._group_name,
            self._group.node_id,
            role,
            self._group.term,
            self._machine.applied_position,
            header.start,
            run.end,
        )
        self._requests.respond(request, run.data, encode_ext(answer))


def _planned(topic: TopicState) -> PlannedTopic:
    queues = [
        PlannedQueue(queue.queue_id, queue.first_offset, queue.next_offset)
        for queue in topic.queues.values()
        if queue.next_offset
    ]
    return PlannedTopic(topic.config.topic_name, topic.created_position, sorted(queues, key=lambda queue: queue.id))
