"""Reset: replaces the whole log by the position of a snapshot.

The intent, `raft/reset` (MessagePack of the `SnapshotMeta`), is made durable first. A start that finds it after a crash
carries the reset out again. The snapshot itself must be durable before.

The intent is first written as `raft/reset.tmp`, while the snapshot can still be refused. So announcing it later cannot
fail on a full disk. An intent that is not announced has no effect.
"""

from __future__ import annotations

import msgspec

from dledger.errors import UnreadableResetError
from dledger.store.commit import SavedCommit
from dledger.store.disk import Disk, prepare_file, publish_prepared
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.segments import DIRECTORY
from dledger.store.snapshots import SnapshotStore
from dledger.store.unreadable import salvage
from dledger.types import SnapshotMeta

PATH = "raft/reset"

_decode = msgspec.msgpack.Decoder(SnapshotMeta).decode


def pending_reset(disk: Disk) -> SnapshotMeta | None:
    """Return the snapshot of an interrupted reset, or None. Raises `UnreadableResetError`."""
    try:
        return _read(disk, PATH)
    except msgspec.MsgspecError as error:
        raise UnreadableResetError(
            f"{PATH}, the intent to replace the log by a snapshot, is not readable: {error}"
        ) from error


def _read(disk: Disk, path: str) -> SnapshotMeta | None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return _decode(salvage(file, file.size(), 0))
    finally:
        file.close()


def prepare_reset(disk: Disk, base: SnapshotMeta) -> None:
    """Write the intent without announcing it, so that a later `announce_reset` takes no space."""
    prepare_file(disk, PATH, msgspec.msgpack.encode(base))


def announce_reset(disk: Disk, base: SnapshotMeta) -> None:
    """Make the intent durable. It is written first if another intent, or none, was prepared."""
    try:
        prepared = _read(disk, f"{PATH}.tmp")
    except msgspec.MsgspecError:
        prepared = None
    if prepared != base:
        prepare_reset(disk, base)
    publish_prepared(disk, PATH)


def perform_reset(
    disk: Disk, snapshots: SnapshotStore, mark: DurableMark, commit: SavedCommit, base: SnapshotMeta, generation: int
) -> None:
    """Delete the log and all other snapshots, set the mark to the snapshot, and remove the intent.

    The mark gets this generation. After an `OSError` it may be called again.
    """
    for directory in (DIRECTORY, INDEX_DIRECTORY):
        disk.mkdir(directory)  # if it was removed: a later mkdir could need space that is no longer there
        for name in disk.listdir(directory):
            disk.unlink(f"{directory}/{name}")
        disk.sync_dir(directory)
    disk.sync_dir("")
    for meta in snapshots.list():
        if meta.position != base.position:
            snapshots.delete(meta.position)
    mark.lower_and_sync(MarkValue(base.position, base.last_index, base.last_term, base.chain_crc, generation))
    commit.save(base.last_index)
    disk.unlink(PATH)
    disk.sync_dir("raft")
