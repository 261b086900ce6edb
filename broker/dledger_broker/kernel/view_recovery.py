"""Recovery of the consume queues' files: decides which of their units can be trusted when a node starts.

The state is from a snapshot at log position S, and everything from S on is applied again. Only units of records below S
matter. The checkpoint says which units the files held durably at its own position C:

- C >= S: a queue must hold the units up to its next offset in the snapshot.
- C < S: a queue must hold the units that the checkpoint lists. Entries from C on are rebuilt.
- No valid checkpoint, or a queue whose files lack units that they must hold: it is rebuilt from the beginning of the
  log.

Assume C > S, and a topic that was deleted and made again between the two. Applying the deletion again sets aside the
files that the checkpoint lists for the later topic. Such a checkpoint serves this start only.

The check of a queue reads its first and last required unit, and checks whether its files exist in full length. The
units between are checked when they are read.

If a name cannot be looked up, the files of all queues are put aside and rebuilt: the name can perhaps not be removed.
"""

from __future__ import annotations

import logging

from dledger.errors import CorruptionError
from dledger.store.disk import Disk
from dledger.store.unreadable import is_lost_name
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.views.checkpoint import load_checkpoint, remove_checkpoint
from dledger_broker.views.leftovers import put_aside
from dledger_broker.views.unitfiles import (
    DELETED_PREFIX,
    DIRECTORY,
    FileLayout,
    deleted_directory,
    queue_directory,
    topic_directory,
)
from dledger_broker.views.unitreader import read_units
from dledger_broker.views.units import READ_UNIT, UNIT_BYTES, is_record_unit

_logger = logging.getLogger(__name__)


def recover_queues(disk: Disk, layout: FileLayout, topics: TopicTable, position: int, incarnation: str) -> int:
    """Set the views of `topics`, which a snapshot at `position` restored, to what their files provably hold.

    Return the log position from which entries must be rebuilt.
    """
    try:
        return _recover(disk, layout, topics, position, incarnation)
    except OSError as error:
        if not is_lost_name(error):
            raise
        _logger.warning("event=queues_rebuilt reason=%r", str(error))
    return _begin_anew(disk, topics, position)


def _begin_anew(disk: Disk, topics: TopicTable, position: int) -> int:
    """Put the files of all queues aside, and return the position from which entries must be rebuilt."""
    remove_checkpoint(disk)
    put_aside(disk)
    for queue in topics.queues():
        queue.view.reset(0, 0)
    return 0 if any(queue.next_offset for queue in topics.queues()) else position


def _recover(disk: Disk, layout: FileLayout, topics: TopicTable, position: int, incarnation: str) -> int:
    checkpoint = load_checkpoint(disk)
    if checkpoint is None or checkpoint.incarnation != incarnation or not topics.by_name:
        return _begin_anew(disk, topics, position)
    created = {extent.topic: extent.created_position for extent in checkpoint.topics}
    ahead = checkpoint.position >= position
    if ahead and any(
        created.get(name, topic.created_position) > topic.created_position for name, topic in topics.by_name.items()
    ):
        remove_checkpoint(disk)
    _remove_unknown_topics(disk, topics, created)
    known = checkpoint.extents()
    lost: list[QueueState] = []
    for name, topic in topics.by_name.items():
        same_incarnation = created.get(name) == topic.created_position
        deleted = disk.exists(deleted_directory(name, topic.created_position))
        for queue in topic.queues.values():
            extent = known.get((name, queue.queue_id)) if same_incarnation and not deleted else None
            if extent is None:
                _recover_unlisted(disk, queue, ahead=deleted or ahead)
            elif not _recover_listed(disk, layout, queue, extent, checkpoint.position, position):
                lost.append(queue)
    if lost:
        _logger.warning(
            "event=queues_rebuilt queues=%d first=%r reason='their files are incomplete'", len(lost), str(lost[0])
        )
        remove_checkpoint(disk)
        for queue in lost:
            disk.rmtree(queue_directory(queue.topic, queue.queue_id))
        return 0
    return min(checkpoint.position, position)


def _recover_unlisted(disk: Disk, queue: QueueState, *, ahead: bool) -> None:
    """Recover a queue that the checkpoint does not list.

    If the checkpoint is ahead of the snapshot, the queue's topic was deleted between the two. Applying will delete it
    again, and nobody reads it until then. If the checkpoint is behind, the queue's first message is newer than it, and
    files of its name on disk are older.
    """
    if ahead:
        queue.view.reset(queue.next_offset, queue.next_offset)
    else:
        disk.rmtree(queue_directory(queue.topic, queue.queue_id))


def _recover_listed(
    disk: Disk,
    layout: FileLayout,
    queue: QueueState,
    extent: tuple[int, int],
    checkpoint_position: int,
    position: int,
) -> bool:
    """Set the queue's view. Return False if its files lack units that they must hold."""
    start, end = extent
    if checkpoint_position >= position:
        end = queue.next_offset
    start = min(max(start, queue.first_offset), end)
    if start < end and not _holds(disk, layout, queue, start, end, min(checkpoint_position, position)):
        return False
    queue.view.reset(start, end)
    return True


def _holds(disk: Disk, layout: FileLayout, queue: QueueState, start: int, end: int, position_limit: int) -> bool:
    directory, seed = queue_directory(queue.topic, queue.queue_id), queue.view.seed
    for offset in range(start - start % layout.units_per_file, end, layout.units_per_file):
        try:
            file = disk.open(layout.path(directory, offset))
        except FileNotFoundError:
            return False
        try:
            if file.size() < layout.place(min(end - 1, offset + layout.units_per_file - 1)) + UNIT_BYTES:
                return False
        finally:
            file.close()
    try:
        first, last = (read_units(disk, layout, directory, seed, offset, 1) for offset in (start, end - 1))
    except CorruptionError:
        return False
    if not is_record_unit(first) or not is_record_unit(last):
        return False
    return bool(READ_UNIT.unpack(first)[0] <= READ_UNIT.unpack(last)[0] < position_limit)


def _remove_unknown_topics(disk: Disk, topics: TopicTable, created: dict[str, int]) -> None:
    if disk.exists(DIRECTORY):
        for name in disk.listdir(DIRECTORY):
            if name not in topics.by_name and name not in created and not name.startswith(DELETED_PREFIX):
                disk.rmtree(topic_directory(name))
