"""Recovery of the consume queues' files: what of them can be trusted when a node starts.

The state comes from a snapshot at log position S, and everything from S on is applied again, so only units of records
below S matter.  The checkpoint says what the files held durably at its own position C:

- C >= S: a queue must hold the units up to its next offset in the snapshot.
- C < S: a queue must hold what the checkpoint lists; entries from C on are rebuilt.
- no valid checkpoint, or a queue whose files do not hold what they must: it is rebuilt from the beginning of the log.

Where C > S and a topic was deleted and made again between the two, applying the deletion anew sets the files aside that
the checkpoint lists for the later topic.  Such a checkpoint serves this start only.

A queue is checked by its files being there in full length and by the first and the last unit it must hold.
"""

from __future__ import annotations

import logging

from dledger.store.disk import Disk
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
from dledger_broker.views.units import UNIT, UNIT_BYTES, is_record_unit

_logger = logging.getLogger(__name__)


def recover_queues(disk: Disk, layout: FileLayout, topics: TopicTable, position: int, incarnation: str) -> int:
    """Set the views of `topics`, which a snapshot at `position` restored, to what their files provably hold.

    Returns the log position from which entries must be rebuilt.
    """
    checkpoint = load_checkpoint(disk)
    if checkpoint is None or checkpoint.incarnation != incarnation or not topics.by_name:
        remove_checkpoint(disk)
        put_aside(disk)
        return 0 if any(queue.next_offset for queue in topics.queues()) else position
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
    """A queue that the checkpoint does not list.

    Ahead of the snapshot: its topic was deleted between the two, as applying will find again, and nobody reads it until
    then.  Behind it: its first message came after the checkpoint, and whatever has its name on disk is older.
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
    """Set the queue's view; False if its files do not hold what they must."""
    start, end = extent
    if checkpoint_position >= position:
        end = queue.next_offset
    start = min(max(start, queue.first_offset), end)
    directory, limit = queue_directory(queue.topic, queue.queue_id), min(checkpoint_position, position)
    if start < end and not _holds(disk, layout, directory, start, end, limit):
        return False
    queue.view.reset(start, end)
    return True


def _holds(disk: Disk, layout: FileLayout, directory: str, start: int, end: int, position_limit: int) -> bool:
    first: bytes = b""
    last: bytes = b""
    for offset in range(start - start % layout.units_per_file, end, layout.units_per_file):
        try:
            file = disk.open(layout.path(directory, offset))
        except FileNotFoundError:
            return False
        try:
            if file.size() < layout.place(min(end - 1, offset + layout.units_per_file - 1)) + UNIT_BYTES:
                return False
            first = first or file.pread(UNIT_BYTES, layout.place(start))
            last = file.pread(UNIT_BYTES, layout.place(end - 1))
        finally:
            file.close()
    if not is_record_unit(first) or not is_record_unit(last):
        return False
    return bool(UNIT.unpack(first)[0] <= UNIT.unpack(last)[0] < position_limit)


def _remove_unknown_topics(disk: Disk, topics: TopicTable, created: dict[str, int]) -> None:
    if disk.exists(DIRECTORY):
        for name in disk.listdir(DIRECTORY):
            if name not in topics.by_name and name not in created and not name.startswith(DELETED_PREFIX):
                disk.rmtree(topic_directory(name))
