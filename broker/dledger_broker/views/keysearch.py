"""Fills the key index behind the log, and answers queries from both.

Sends do not wait for the index: a task reads the log behind the applied end and indexes it on a worker, with at most
`share` of a core while messages come in and a quarter of one otherwise, or the farther it falls behind.  What it has
not reached, a query searches in the log itself, so that an acknowledged message is always found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from dledger.environment import COLD, Environment, called_back, slept
from dledger.errors import CorruptionError, LogError, NotLeaderError, TrimmedError
from dledger.store.disk import Disk
from dledger.supervision import supervise
from dledger_broker.views.keyfile import IndexLayout
from dledger_broker.views.keyindex import CHECKPOINT, KeyIndex, iter_block
from dledger_broker.views.keyscan import record_keys
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.writer import ViewWriter
from dledger_remoting.errors import RecordError
from dledger_remoting.record import scan_records

BLOCK_BYTES: Final = 1 << 20
"""How much of the log is indexed at a time."""
SEARCH_BLOCK_BYTES: Final = 1 << 20
SAVE_EVERY_BYTES: Final = 256 << 20
IDLE_SHARE: Final = 0.25
FAR_BEHIND_BYTES: Final = 1 << 30
"""With so much of the log not indexed the share is that of a node where no messages come in."""
IDLE_POLL_S: Final = 0.25
RETRY_S: Final = 5.0
SCRUB_S: Final = 3600.0
"""How often the checkpoint is read again."""
MAX_CANDIDATES_PER_RESULT: Final = 4
"""Hash collisions that a query for one result reads records for."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class KeySearch:
    """The key index of one replica; use from the event loop.

    `incarnation` of the data directory is set before `start`.
    """

    def __init__(
        self, disk: Disk, env: Environment, layout: IndexLayout, reader: LogReader, replica: AppliedLog, share: float
    ) -> None:
        self._env = env
        self._index = KeyIndex(disk, layout)
        self._worker = ViewWriter(env)
        self._reader = reader
        self._replica = replica
        self._share = share
        self.incarnation = ""
        self.restarts = 0
        """How often indexing went on after an unexpected exception."""
        self.on_restart: Callable[[], None] = self._count_restart
        self._position = 0
        self._saved_position = 0
        self._loading = asyncio.Lock()
        self._loaded = False
        self._closing = False
        self._generation = 0
        self._task: asyncio.Task[None] | None = None
        self._seen_applied = 0
        self._scrub_at = env.now() + SCRUB_S

    @property
    def position(self) -> int:
        """The log position up to which records are indexed."""
        return self._position

    @property
    def lag_bytes(self) -> int:
        """How much of the applied log is not indexed yet."""
        return max(0, self._replica.applied_position - max(self._position, self._replica.log.first_position))

    def start(self) -> None:
        """Begin to index; needs a running event loop."""
        run = supervise(self._run, "key index", self.on_restart, now=self._env.now, sleep=partial(slept, self._env))
        self._task = asyncio.get_running_loop().create_task(run)

    async def close(self) -> None:
        """Stop indexing and make what is indexed durable; queries are refused from then on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._loaded:
            try:
                await self.save(slots=True)
            except OSError as error:
                _logger.warning("event=key_index_stands position=%d error=%r", self._saved_position, str(error))
        self._closing = True
        await self._work(self._index.close)

    def abandon(self) -> None:
        """Stop indexing and do nothing more: what is not durable comes again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._worker.abandon()

    async def load(self) -> None:
        """Open the files, once; who asks meanwhile waits for that."""
        if self._loaded:
            return
        async with self._loading:
            while not self._loaded:
                generation = self._generation
                position = await self._work(partial(self._index.load, self.incarnation))
                if generation == self._generation:
                    self._position = self._saved_position = position
                    self._loaded = True

    async def index_block(self) -> bool:
        """Index one more piece of the log; False if there is none."""
        await self.load()
        start = max(self._position, self._replica.log.first_position)
        if start >= self._replica.applied_position:
            return False
        generation = self._generation
        position, data = await self._reader.block(start, BLOCK_BYTES)
        indexed = await self._work(partial(self._index.add_block, data, position))
        if generation == self._generation:
            if indexed <= start:
                raise CorruptionError(f"no entry at position {position} of the log")
            self._position = indexed
        return True

    async def catch_up(self) -> None:
        """Index everything that is applied now."""
        while await self.index_block():
            pass

    async def save(self, *, slots: bool = False) -> None:
        """Make what is indexed durable, unless the log itself is not yet."""
        position, generation = self._position, self._generation
        if position > self._replica.log.durable_position:
            return
        await self._work(self._index.save)
        if slots:
            await self._work(self._index.save_slots)
        if generation == self._generation:
            self._saved_position = position

    def trimmed(self, position: int) -> None:
        """The log below `position` is gone."""
        self._worker.submit(partial(self._index.remove_below, position), self._report)

    def wipe(self) -> None:
        """The log was replaced: start over."""
        self._position = self._saved_position = 0
        self._generation += 1
        self._worker.submit(self._index.wipe, self._report)

    async def candidates(self, topic: str, key: bytes, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of records that may have the key and were stored in the range, newest first.

        Raises `NotLeaderError` once the index is closed: other nodes are to be asked.
        """
        while True:
            await self.load()
            generation = self._generation
            found = await self._candidates(topic, key, limit, begin_ms, end_ms)
            if generation == self._generation:  # else the index was emptied or opened again between its answers
                return found

    async def _candidates(self, topic: str, key: bytes, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        unindexed = self._position
        recent: list[int] = []
        # The log may be trimmed, or replaced by a snapshot, while a piece of it is read.
        while (unindexed := max(unindexed, self._replica.log.first_position)) < self._replica.applied_position:
            try:
                unindexed, data = await self._reader.block(unindexed, SEARCH_BLOCK_BYTES)
            except TrimmedError:
                continue
            found, unindexed = await self._cold(partial(_search_block, data, unindexed, topic, key, begin_ms, end_ms))
            recent += found
        if self._closing:
            raise NotLeaderError(None, 0, "this node is stopping")
        wanted = limit * MAX_CANDIDATES_PER_RESULT
        indexed = await self._work(partial(self._index.positions, topic, key, begin_ms, end_ms, wanted))
        return list(dict.fromkeys([*reversed(recent), *indexed]))

    def _count_restart(self) -> None:
        self.restarts += 1

    async def _run(self) -> None:
        while True:
            try:
                started = self._env.now()
                if await self.index_block():
                    if self._position - self._saved_position >= SAVE_EVERY_BYTES:
                        await self.save()
                    await slept(self._env, (self._env.now() - started) * (1 / self._current_share() - 1))
                else:
                    if self._position != self._saved_position:
                        await self.save()
                    await self._scrub()
                    await slept(self._env, IDLE_POLL_S)
            except TrimmedError:
                continue
            except (LogError, OSError, RecordError) as error:
                _logger.warning("event=key_index_stands position=%d error=%r", self._position, str(error))
                if self._index.in_doubt:
                    self._generation += 1
                    self._loaded = False
                await slept(self._env, RETRY_S)

    async def _scrub(self) -> None:
        """From time to time, when nothing else is to be done."""
        if self._env.now() >= self._scrub_at:
            self._scrub_at = self._env.now() + SCRUB_S
            if await self._work(self._index.scrub):
                _logger.warning("event=rot_mended path=%s consequence='written anew from memory'", CHECKPOINT)

    def _current_share(self) -> float:
        applied = self._replica.applied_position
        busy = applied != self._seen_applied
        self._seen_applied = applied
        return core_share(self._share, self.lag_bytes) if busy else IDLE_SHARE

    async def _work(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self._worker.submit(work, done))

    async def _cold(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self._env.run_blocking(COLD, work, done))

    @staticmethod
    def _report(result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=files_not_removed of='the key index' error=%r", str(result))


def core_share(share: float, lag_bytes: int) -> float:
    """The part of a core for indexing while messages come in: from `share` on, the more of the log is not indexed."""
    return share + (IDLE_SHARE - share) * min(lag_bytes / FAR_BEHIND_BYTES, 1.0)


def _search_block(
    data: bytes, position: int, topic: str, key: bytes, begin_ms: int, end_ms: int
) -> tuple[list[int], int]:
    """The records of a piece of the log that have the key, in log order, and the position after the piece."""
    wanted_topic = topic.encode()
    found: list[int] = []
    after = position
    for start, end, after_entry in iter_block(data, position):
        after = after_entry
        if data.find(key, start, end) < 0:
            continue
        for record in scan_records(data, start, end):
            in_range = record.topic == wanted_topic and begin_ms <= record.store_timestamp <= end_ms
            if in_range and key in record_keys(record):
                found.append(record.physical_offset)
    if after == position:
        raise CorruptionError(f"no entry at position {position} of the log")
    return found, after
