"""Search by key: fills the key index behind the log, and answers queries from both.

Sends do not wait for the index. A task reads the log behind the applied end and indexes it on a worker. While messages
arrive, it uses `share` of a core, and more the farther it falls behind, up to a quarter. Otherwise it uses a quarter of
a core. A query searches the part of the log that is not indexed yet in the log itself, so that an acknowledged message
is always found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from dledger.environment import COLD, Environment, called_back, slept
from dledger.errors import CorruptionError, LogError, NotLeaderError, TrimmedError
from dledger.store.disk import Disk
from dledger_base.supervision import supervise
from dledger_broker.views.keyfile import IndexDamageError, IndexLayout
from dledger_broker.views.keyindex import CHECKPOINT, KeyIndex, iter_block
from dledger_broker.views.keyscan import record_keys
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.writer import ViewWriter
from dledger_remoting.errors import RecordError
from dledger_remoting.record import scan_records

BLOCK_BYTES: Final = 1 << 20
"""Size in bytes of the piece of the log that is indexed at a time."""
SEARCH_BLOCK_BYTES: Final = 1 << 20
SAVE_EVERY_BYTES: Final = 256 << 20
IDLE_SHARE: Final = 0.25
FAR_BEHIND_BYTES: Final = 1 << 30
"""Size in bytes of the unindexed log at which the share is as large as on a node where no messages arrive."""
IDLE_POLL_S: Final = 0.25
RETRY_S: Final = 5.0
SCRUB_S: Final = 3600.0
"""Interval in seconds at which the checkpoint is read again, and between two rounds through the files."""
FIRST_VERIFY_S: Final = 90.0
VERIFY_GROUPS: Final = 250
"""Number of groups that are read back at a time: 1 MB."""
VERIFY_PAUSE_S: Final = 0.1
LOOKS_PER_TURN: Final = 64
"""Number of candidates of a query that are read in a turn of the event loop."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class KeySearch:
    """The key index of one replica, for use on the event loop.

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
        """Number of times that indexing continued after an unexpected exception."""
        self.on_restart: Callable[[], None] = self._count_restart
        self.give_way: Callable[[], Awaitable[None]] = _go_on
        """Waits if the tasks of this turn of the event loop have had their time."""
        self._position = 0
        self._saved_position = 0
        self._loading = asyncio.Lock()
        self._loaded = False
        self._closing = False
        self._generation = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._seen_applied = 0
        self._scrub_at = env.now() + SCRUB_S

    @property
    def position(self) -> int:
        """The log position up to which records are indexed."""
        return self._position

    @property
    def lag_bytes(self) -> int:
        """Size of the applied log that is not indexed yet."""
        return max(0, self._replica.applied_position - max(self._position, self._replica.log.first_position))

    def start(self) -> None:
        """Begin to index. Needs a running event loop."""
        for run, name in ((self._run, "key index"), (self._verify, "key index scrub")):
            supervised = supervise(run, name, self.on_restart, now=self._env.now, sleep=partial(slept, self._env))
            self._tasks.append(asyncio.get_running_loop().create_task(supervised))

    async def close(self) -> None:
        """Stop indexing and make the indexed part durable. Later queries are refused."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._loaded:
            try:
                await self.save(slots=True)
            except OSError as error:
                _logger.warning("event=key_index_stands position=%d error=%r", self._saved_position, str(error))
        self._closing = True
        await self._work(self._index.close)

    def abandon(self) -> None:
        """Stop indexing and do nothing more. The part that is not durable is indexed again after the next start."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._worker.abandon()

    async def load(self) -> None:
        """Open the files, once. Callers that arrive meanwhile wait for that."""
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
        """Index one more piece of the log. Return False if the whole log is indexed."""
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
        """Make the indexed part durable, unless the log itself is not durable yet."""
        position, generation = self._position, self._generation
        if position > self._replica.log.durable_position:
            return
        await self._work(self._index.save)
        if slots:
            await self._work(self._index.save_slots)
        if generation == self._generation:
            self._saved_position = position

    def trimmed(self, position: int) -> None:
        """Remove files after a trim: the log below `position` is gone."""
        self._worker.submit(partial(self._index.remove_below, position), self._report)

    def wipe(self) -> None:
        """Start over, because the log was replaced."""
        self._position = self._saved_position = 0
        self._generation += 1
        self._worker.submit(self._index.wipe, self._report)

    async def candidates(self, topic: str, key: bytes, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return the physical offsets of records that may have the key and were stored in the range, newest first.

        At most `limit` of them are from the index. All matching records that are not indexed yet are added. Many may
        have other keys, because a hash of 31 bits is easily met. Raises `NotLeaderError` once the index is closed; the
        caller then tries other nodes.
        """
        while True:
            await self.load()
            generation = self._generation
            try:
                found = await self._candidates(topic, key, limit, begin_ms, end_ms)
            except IndexDamageError as error:
                self._found_damage(generation, error)
                continue
            if generation == self._generation:  # otherwise the index was emptied or opened again between its answers
                return found

    async def leave_turn(self, number: int) -> None:
        """Give way to other callbacks before the candidate of this number is read.

        That is after every `LOOKS_PER_TURN` candidates, and whenever `give_way` waits: candidates may be large.
        """
        if not number % LOOKS_PER_TURN:
            await slept(self._env, 0.0)
        await self.give_way()

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
        indexed = await self._work(partial(self._index.positions, topic, key, begin_ms, end_ms, limit))
        return list(dict.fromkeys([*reversed(recent), *indexed]))

    def _found_damage(self, generation: int, error: Exception) -> None:
        """Make the index anew, unless that has happened since. Until then queries search the log."""
        if generation == self._generation:
            _logger.warning("event=key_index_rebuilt reason=%r", str(error))
            self.wipe()

    async def _verify(self) -> None:
        """Read all files back, again and again, slowly."""
        await slept(self._env, FIRST_VERIFY_S)
        while True:
            place, is_over = ("", 0), False
            while not is_over:
                await self.load()
                generation = self._generation
                try:
                    place = await self._work(partial(self._index.verify, *place, VERIFY_GROUPS))
                except IndexDamageError as error:
                    self._found_damage(generation, error)
                    place = "", 0
                except (LogError, OSError) as error:
                    _logger.warning("event=key_index_not_scrubbed error=%r", str(error))
                    place = "", 0
                is_over = not place[0]
                await slept(self._env, VERIFY_PAUSE_S)
            await slept(self._env, SCRUB_S)

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
        """Scrub the checkpoint from time to time, when nothing else is to be done."""
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


async def _go_on() -> None:
    """Wait for nothing."""


def core_share(share: float, lag_bytes: int) -> float:
    """Return the share of a core for indexing while messages arrive. It grows from `share` with the unindexed log."""
    return share + (IDLE_SHARE - share) * min(lag_bytes / FAR_BEHIND_BYTES, 1.0)


def _search_block(
    data: bytes, position: int, topic: str, key: bytes, begin_ms: int, end_ms: int
) -> tuple[list[int], int]:
    """Return the records with the key in a piece of the log, in log order, and the position after the piece."""
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
