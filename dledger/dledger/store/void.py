"""Void snapshots: those of entries that a truncation drops.

A snapshot holds what was committed, and that is truncated only if an operator has accepted its loss (`flush = "async"`,
and too many hosts went down at once).  Then other entries are committed in its place:

1. A snapshot stands at P, where a segment begins; the entry at P, which has told everybody to take it, is lost.
2. The next leader has no snapshot there.  Its next entry is small and goes before P, where the one at P did not fit.
3. A follower that still believes that its log goes on at P cannot append that entry.  One that trims to the snapshot,
   or sends it to others, goes on with a state that nobody else has.
"""

from __future__ import annotations

from dledger.errors import CorruptionError, TrimmedError
from dledger.store.disk import Disk
from dledger.store.reader import LogReader
from dledger.store.snapshots import DIRECTORY, SnapshotStore
from dledger.types import SnapshotMeta


def drop_void_snapshots(disk: Disk, snapshots: SnapshotStore, log: LogReader, first_index: int) -> None:
    """Delete the snapshots, durably, that are void once `log` has dropped the entries from `first_index` on.

    To be called before that, while these can be read.  The log's base stays.  Raises `OSError`.
    """
    void = [
        meta for meta in snapshots.list() if meta.position > log.first_position and _is_void(meta, log, first_index)
    ]
    for meta in void:
        snapshots.delete(meta.position)
    if void:
        disk.sync_dir(DIRECTORY)


def _is_void(meta: SnapshotMeta, log: LogReader, first_index: int) -> bool:
    """Whether a snapshot's last entry, or the one that follows right at its position, is of this log and goes."""
    if not log.first_index <= meta.last_index <= log.last_index:
        return False
    try:
        if log.meta(meta.last_index).chain_crc != meta.chain_crc:
            return False
        follows = meta.last_index < log.last_index and log.position_at(meta.last_index + 1) == meta.position
    except (CorruptionError, TrimmedError):  # one that is trimmed meanwhile lies below all that may go
        return False
    return meta.last_index >= first_index or (follows and meta.last_index + 1 >= first_index)
