"""Void snapshots: snapshots of entries that a truncation drops.

A snapshot covers committed entries. They are truncated only if an operator has accepted their loss (`flush = "async"`,
and too many hosts went down at once). Then other entries are committed in their place:

1. A snapshot is at P, where a segment begins. The entry at P, which told all replicas to take it, is lost.
2. The next leader has no snapshot there. Its next entry is small and is placed before P, where the lost one did not
   fit.
3. A follower that still expects its log to continue at P cannot append that entry. A follower that trims to the
   snapshot, or sends it to others, continues with a state that no other node has.
"""

from __future__ import annotations

from dledger.errors import CorruptionError, TrimmedError
from dledger.store.disk import Disk
from dledger.store.reader import LogReader
from dledger.store.snapshots import DIRECTORY, SnapshotStore
from dledger.types import SnapshotMeta


def drop_void_snapshots(disk: Disk, snapshots: SnapshotStore, log: LogReader, first_index: int) -> None:
    """Delete, durably, the snapshots that are void once `log` has dropped the entries from `first_index` on.

    Call it before that, while these entries can be read. The snapshot that the log begins behind stays. Raises
    `OSError`.
    """
    void = [
        meta for meta in snapshots.list() if meta.position > log.first_position and _is_void(meta, log, first_index)
    ]
    for meta in void:
        snapshots.delete(meta.position)
    try:
        if void:
            disk.sync_dir(DIRECTORY)
    except OSError:
        for meta in void:  # the truncation may be repeated, and must then find them again
            snapshots.add(meta)
        raise


def _is_void(meta: SnapshotMeta, log: LogReader, first_index: int) -> bool:
    """Return whether a snapshot's last entry, or the entry right at its position, is in this log and is dropped."""
    if not log.first_index <= meta.last_index <= log.last_index:
        return False
    try:
        if log.meta(meta.last_index).chain_crc != meta.chain_crc:
            return False
        is_next_at_position = meta.last_index < log.last_index and log.position_at(meta.last_index + 1) == meta.position
    except (CorruptionError, TrimmedError):  # a trimmed entry is below all that may be dropped
        return False
    return meta.last_index >= first_index or (is_next_at_position and meta.last_index + 1 >= first_index)
