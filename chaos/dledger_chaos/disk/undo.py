"""Rollback of a killed node's unsynced writes, as after a power loss. `shim/shim.c` describes the formats.

A real disk may lose all unsynced writes, none, or a part. Each sector of an unsynced write survives or not,
independently of others. A file has its old length or its new length.

Writes before a failed sync are lost, too, because the kernel marks their pages as clean. They survive if they were
written and synced again.

Changes of names are lost from some moment on, because file systems journal them in order.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import ChaosError

SECTOR_BYTES: Final = 512
"""Size of the unit that a disk writes as a whole."""

_MAGIC: Final = b"DLSHIM1\0"
_HEADER: Final = struct.Struct("<8sQQ")
_RECORDS_START: Final = 4096
_RECORD: Final = struct.Struct("<qqqqq")
_REWRITTEN: Final = -1
_SYNCED: Final = -2


class PowerLoss(NamedTuple):
    """Result of a rollback."""

    files: int
    """Number of files with unsynced writes."""
    writes: int
    names: int
    """Number of creations, renames and removals that were undone."""


class _Write(NamedTuple):
    offset: int
    old_size: int
    length: int
    old: bytes


@dataclass(slots=True)
class _Change:
    serial: int
    kind: str
    path: str
    target: str
    kept: str
    inode: int
    unsynced: set[str]


def lose_power(state: Path, directory: Path, *, kept_share: float = 0.0, rng: random.Random | None = None) -> PowerLoss:
    """Roll the files of a stopped node below `directory` back to their synced content, and empty the shim's records.

    `state` is the shim's directory for the node. Each sector of an unsynced write survives with probability
    `kept_share`. If it is above 0, it needs `rng`, which also draws how many changes of names survive.
    """
    if kept_share > 0 and rng is None:
        raise ChaosError("a torn power loss is drawn at random and needs a source of randomness")
    files = writes = 0
    paths = {
        (status.st_dev, status.st_ino): path
        for root in (directory, state / "kept")
        for path in root.rglob("*")
        if path.is_file() and (status := path.stat())
    }
    for undo in sorted((state / "undo").glob("*")):
        device, _, inode = undo.name.partition("-")
        unsynced = list(_iter_unsynced_writes(undo))
        file_path = paths.get((int(device, 16), int(inode, 16)))
        if unsynced and file_path is not None:
            files += 1
            writes += len(unsynced)
            _roll_back(file_path, unsynced, kept_share, rng)
        undo.unlink()
    for note_file in sorted((state / "lost").glob("*")):
        device, _, inode = note_file.name.partition("-")
        file_path = paths.get((int(device, 16), int(inode, 16)))
        if file_path is not None:
            _roll_back_lost(file_path, note_file.read_bytes(), kept_share, rng)
        note_file.unlink()
    changes = _read_unsynced_changes(state / "names")
    if rng is not None and kept_share > 0:
        changes = changes[rng.randint(0, len(changes)) :]
    names = sum(_undo_change(change) for change in reversed(changes))
    (state / "names").unlink(missing_ok=True)
    for kept in (state / "kept").glob("*"):
        kept.unlink()
    return PowerLoss(files, writes, names)


def forget(state: Path) -> None:
    """Remove the shim's records: without a power loss, all unsynced writes reach the disk."""
    for name in ("undo", "lost", "kept"):
        shutil.rmtree(state / name, ignore_errors=True)
    (state / "names").unlink(missing_ok=True)


def _iter_unsynced_writes(path: Path) -> Iterator[_Write]:
    """Yield the writes that were not durable, oldest first."""
    data = path.read_bytes()
    if len(data) < _RECORDS_START:
        return
    magic, synced, end = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return
    at = _RECORDS_START if end < synced else synced
    while at < end:
        offset, old_size, length, kept, zeros = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield _Write(offset, old_size, length, bytes(kept) if zeros else data[at : at + kept])
        at += 0 if zeros else kept


def _iter_notes(data: bytes) -> Iterator[tuple[int, int, _Write]]:
    """Yield the notes of a lost file: the position of each note, its number of kept bytes, and the write.

    Instead of a number of bytes, `_REWRITTEN` marks a later write, and `_SYNCED` a successful sync.
    """
    at = 0
    while at + _RECORD.size <= len(data):
        begin = at
        offset, old_size, length, kept, zeros = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        follows = 0 if zeros else max(kept, 0)
        yield begin, kept, _Write(offset, old_size, length, data[at : at + follows])
        at += follows


def _roll_back_lost(path: Path, data: bytes, kept_share: float, rng: random.Random | None) -> None:
    """Restore the content from before the writes that a failed sync has lost, each sector with its own probability."""
    size = path.stat().st_size
    lost, old = bytearray(size), bytearray(size)
    synced_before = max((write.offset for _, kept, write in _iter_notes(data) if kept == _SYNCED), default=0)
    for begin, kept, write in _iter_notes(data):
        end = max(write.offset, min(write.offset + write.length, size))
        if kept >= 0:
            before = write.old.ljust(write.length, b"\0")
            for start, stop in _iter_runs(lost, 0, write.offset, end):
                old[start:stop] = before[start - write.offset : stop - write.offset]
                lost[start:stop] = b"\1" * (stop - start)
        elif kept == _REWRITTEN and begin < synced_before:
            lost[write.offset : end] = bytes(end - write.offset)
    with path.open("r+b") as file:
        for start, stop in _iter_runs(lost, 1, 0, size):
            for at in range(start, stop, SECTOR_BYTES):
                if rng is None or rng.random() >= kept_share:
                    file.seek(at)
                    file.write(old[at : min(at + SECTOR_BYTES, stop)])


def _iter_runs(flags: bytearray, wanted: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of flags equal to `wanted` (0 or 1) in a range."""
    while (begin := flags.find(wanted, start, end)) >= 0:
        start = flags.find(1 - wanted, begin, end)
        if start < 0:
            start = end
        yield begin, start


def _roll_back(path: Path, writes: list[_Write], kept_share: float, rng: random.Random | None) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        new_size = os.fstat(descriptor).st_size
        new = _read_sectors(descriptor, writes) if kept_share > 0 else {}
        for write in reversed(writes):
            os.pwrite(descriptor, write.old, write.offset)
            os.ftruncate(descriptor, write.old_size)
        if rng is None or kept_share <= 0:
            return
        old_size = os.fstat(descriptor).st_size
        size = new_size if rng.random() < kept_share else old_size
        os.ftruncate(descriptor, size)
        for offset, sector in sorted(new.items()):
            if rng.random() < kept_share and offset < size:
                os.pwrite(descriptor, sector[: size - offset], offset)
    finally:
        os.close(descriptor)


def _read_sectors(descriptor: int, writes: list[_Write]) -> dict[int, bytes]:
    """Return the present content of every sector that an unsynced write touched, by its offset."""
    starts = {
        start
        for write in writes
        for start in range(write.offset // SECTOR_BYTES * SECTOR_BYTES, write.offset + write.length, SECTOR_BYTES)
    }
    return {start: os.pread(descriptor, SECTOR_BYTES, start) for start in starts}


def _read_unsynced_changes(path: Path) -> list[_Change]:
    """Return the changes of names that were not durable, oldest first."""
    changes: list[_Change] = []
    if not path.exists():
        return changes
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        kind, serial, *words = line.split("\t")
        if kind == "synced":
            for change in changes:
                if change.serial <= int(serial):
                    change.unsynced.discard(words[0])
            changes = [change for change in changes if change.unsynced]
            continue
        inode, source, target, kept = 0, words[0], "", "-"
        if kind == "rename":
            inode, (source, target, kept) = int(words[0], 16), words[1:]
            for change in changes:
                change.unsynced = {_rename_path(name, source, target) for name in change.unsynced}
        elif kind in ("unlink", "rmdir"):
            kept = words[1]
        dirs = {os.path.dirname(name) for name in (source, target) if name}
        changes.append(_Change(int(serial), kind, source, target, kept, inode, dirs))
    return changes


def _rename_path(name: str, source: str, target: str) -> str:
    return target + name[len(source) :] if name == source or name.startswith(source + "/") else name


def _undo_change(change: _Change) -> bool:
    """Undo one change. Return False if the process was killed before it made the change."""
    path, kept = Path(change.path), Path(change.kept)
    if change.kind == "create":
        found = path.is_file()
        path.unlink(missing_ok=True)
        return found
    if change.kind == "mkdir":
        found = path.is_dir()
        shutil.rmtree(path, ignore_errors=True)
        return found
    if change.kind == "rmdir":
        missing = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        return missing
    if change.kind == "unlink":
        if path.exists() or change.kept == "-" or not kept.exists():
            return False
        kept.rename(path)
        return True
    target = Path(change.target)
    if not target.exists() or target.stat().st_ino != change.inode:
        return False
    target.rename(path)
    if change.kept != "-" and kept.exists():
        kept.rename(target)
    return True
