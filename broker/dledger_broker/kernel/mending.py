"""Mending of consume queues while a node runs: units that rotted on the disk are written anew from the log.

Whoever reads a unit that names no record of its queue tells `QueueMending`, and answers with the error that it gets for
that: the leader answers instead, or the client asks again.  Where the rot ends is found by looking at units further and
further away, until one of them names its record; the log between the two says what the units there are to be.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, NamedTuple, Protocol

from dledger.environment import BACKGROUND, Environment, called_back, slept
from dledger.errors import CorruptionError, LogError, NotLeaderError, TrimmedError
from dledger.statemachine import Leadership
from dledger.supervision import supervise
from dledger_broker.errors import BeingMendedError
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.replica import Replica
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.keyindex import iter_block
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.scan import scan_runs
from dledger_broker.views.unitfiles import queue_directory
from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.errors import RecordError

BLOCK_BYTES: Final = 1 << 20
"""How much of the log is read at a time."""
SHARE: Final = 0.25
"""The part of a core that reading a long piece of the log may take."""
REST_S: Final = 5.0
"""How long a node leaves a queue alone that it could not mend."""

_logger = logging.getLogger(__name__)


class Mended(Replica, Protocol):
    """The replica whose queues are mended."""

    applied_position: int
    leadership: Leadership


class _Rot(NamedTuple):
    """The offsets, from `begin` on and below `end`, among which a reader has found a rotten unit."""

    begin: int
    end: int


class QueueMending:
    """Use from the event loop.

    `noticed` counts how often a reader has come upon a rotten unit, `mended` the units that were written anew.
    """

    def __init__(self, replica: Mended, env: Environment, queues: ConsumeQueues, reader: LogReader) -> None:
        self._replica = replica
        self._env = env
        self._queues = queues
        self._reader = reader
        self.noticed = self.mended = self.restarts = 0
        self._rotten: dict[tuple[str, int], _Rot] = {}
        self._resting: set[tuple[str, int]] = set()
        self._has_rotten = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to mend what is noticed; needs a running event loop."""
        run = supervise(self._run, "mending", self._count_restart, now=self._env.now, sleep=partial(slept, self._env))
        self._task = asyncio.get_running_loop().create_task(run)

    async def close(self) -> None:
        """Mend no more; the files are still open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def abandon(self) -> None:
        """Mend no more, without waiting for what is under way."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def notice(self, topic: str, queue_id: int, begin: int, end: int) -> LogError:
        """A unit of a queue, from offset `begin` on and below `end`, has rotted: have it mended.

        Returns the error to answer with: `NotLeaderError` where another node is the leader, else `BeingMendedError`.
        """
        self.noticed += 1
        if (topic, queue_id) not in self._rotten and (topic, queue_id) not in self._resting:
            self._rotten[topic, queue_id] = _Rot(begin, end)
            self._has_rotten.set()
            path = queue_directory(topic, queue_id)
            _logger.warning("event=rot path=%s offset=%d consequence='written anew from the log'", path, begin)
        why = f"queue {queue_id} of {topic} has rotted here at offset {begin} or behind, and is being mended"
        leadership = self._replica.leadership
        if leadership.is_leader:
            return BeingMendedError(f"{why}: try again")
        return NotLeaderError(leadership.leader_id, leadership.term, why)

    async def mend_noticed(self) -> None:
        """Mend what was noticed; what cannot be mended is noticed again, and rests before."""
        self._has_rotten.clear()
        for topic, queue_id in list(self._rotten):
            rot, written, error = self._rotten[topic, queue_id], 0, ""
            try:
                written = await self._mend(topic, queue_id, rot)
            except (LogError, OSError, RecordError) as failure:
                error = str(failure)
            path = queue_directory(topic, queue_id)
            if written:
                self.mended += written
                _logger.warning("event=rot_mended path=%s consequence='%d units written anew'", path, written)
            else:
                _logger.warning("event=rot_stays path=%s offset=%d error=%r", path, rot.begin, error)
                self._resting.add((topic, queue_id))
                self._env.call_later(REST_S, partial(self._resting.discard, (topic, queue_id)))
            self._rotten.pop((topic, queue_id), None)

    async def _run(self) -> None:
        while True:
            await self.mend_noticed()
            await self._has_rotten.wait()

    async def _mend(self, name: str, queue_id: int, rot: _Rot) -> int:
        """Write anew the units around `rot` that the files have; returns how many."""
        topic = self._replica.state.topic_table.by_name.get(name)
        queue = None if topic is None else topic.queues.get(queue_id)
        if topic is None or queue is None:
            return 0
        low, start = await self._sound_below(topic, queue, rot.begin)
        high, stop = await self._sound_from(queue, rot.end)
        log, written = self._replica.log, 0
        cuts = await log.cuts(start, start + 1, log.segment_bytes)
        position = cuts[0].position if cuts else start
        while position < stop:
            started = self._env.now()
            position, data = await self._reader.block(position, BLOCK_BYTES)
            scan = partial(_units_in, data, position, topic, queue_id)
            runs, position = await called_back(partial(self._env.run_blocking, BACKGROUND, scan))
            for offset, units in runs:
                written += await self._write(
                    queue, max(low + 1, offset), min(high, offset + len(units) // UNIT_BYTES), offset, units
                )
            if position < stop:
                await slept(self._env, (self._env.now() - started) * (1 / SHARE - 1))
        return written

    async def _write(self, queue: QueueState, begin: int, end: int, offset: int, units: bytes) -> int:
        """Write what of the units at `offset` lies between two offsets, as far as the files have them."""
        view = queue.view
        begin, end = max(begin, view.start), min(end, view.written)
        if begin >= end or view.dropped:
            return 0
        piece = units[(begin - offset) * UNIT_BYTES : (end - offset) * UNIT_BYTES]
        await called_back(partial(self._queues.write_again, view, begin, piece))
        return end - begin

    async def _sound_below(self, topic: TopicState, queue: QueueState, offset: int) -> tuple[int, int]:
        """An offset below another whose unit is sound, and the position of its record; or where both begin."""
        step, at = 1, offset - 1
        while at >= queue.view.start:
            position = await self._sound(queue, at)
            if position is not None:
                return at, position
            at, step = at - step, step * 2
        return queue.view.start - 1, max(self._replica.log.first_position, topic.created_position)

    async def _sound_from(self, queue: QueueState, offset: int) -> tuple[int, int]:
        """As `_sound_below`, of an offset from another on; or where both end."""
        step, at = 1, offset
        while at < queue.view.end:
            position = await self._sound(queue, at)
            if position is not None:
                return at, position
            at, step = at + step, step * 2
        return queue.view.end, self._replica.applied_position

    async def _sound(self, queue: QueueState, offset: int) -> int | None:
        """The position of a record whose unit is sound; else None."""
        try:
            position, size, _ = UNIT.unpack_from(await self._queues.read_units(queue.view, offset, 1))
            sound = await self._reader.is_record_of(position, size, queue.topic, queue.queue_id, offset)
        except (TrimmedError, CorruptionError):
            return None
        return position if sound else None

    def _count_restart(self) -> None:
        self.restarts += 1


def _units_in(data: bytes, position: int, topic: TopicState, queue_id: int) -> tuple[list[tuple[int, bytes]], int]:
    """(first offset, units) of a queue's records in whole entries of the log, and the position behind these.

    Raises `CorruptionError` or `RecordError` if the bytes are no entries of records.
    """
    name = topic.config.topic_name.encode()
    found: list[tuple[int, bytes]] = []
    after = position
    for start, end, behind in iter_block(data, position):
        after = behind
        if start == end or position + start < topic.created_position:
            continue
        for of_topic, of_queue, end_offset, units in scan_runs(memoryview(data)[start:end], position + start):
            if of_topic == name and of_queue == queue_id:
                found.append((end_offset - len(units) // UNIT_BYTES, units))
    if after == position:
        raise CorruptionError(f"no entry at position {position} of the log")
    return found, after
