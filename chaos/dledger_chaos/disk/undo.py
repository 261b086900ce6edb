"""Takes back what a killed node had not synced, as a power loss does.  `shim/shim.c` describes the formats.

Between "everything unsynced is lost" and "everything reached the disk" lies what a real disk may do: each sector of an
unsynced write is there or is not, whatever came before or after it, and a file has its old length or its new one.
What a failed sync left unwritten is lost as well, unless it was written again and that was synced: the kernel takes it
for clean.
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
"""What a disk writes as a whole."""

_MAGIC: Final = b"DLSHIM1\0"
_HEADER: Final = struct.Struct("<8sQQ")
_START: Final = 4096
_RECORD: Final = struct.Struct("<qqqqq")
_REWRITTEN: Final = -1
_SYNCED: Final = -2


class PowerLoss(NamedTuple):
    """What a rollback did."""

    files: int
    """Files with unsynced writes."""
    writes: int
    names: int
    """Creations, renames and removals that were undone."""


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
    """Roll the files below `directory` of a node that does not run back to what it had synced.

    `state` is the node's directory of the shim.  `kept_share` is the probability with which a sector of an unsynced
    write is on the disk nevertheless; above 0 it needs `rng`.  The shim's records are empty afterwards.
    """
    if kept_share > 0 and rng is None:
        raise ChaosError("a torn power loss is drawn at random and needs a source of randomness")
    files = writes = 0
    places = {
        (found.st_dev, found.st_ino): path
        for root in (directory, state / "kept")
        for path in root.rglob("*")
        if path.is_file() and (found := path.stat())
    }
    for undo in sorted((state / "undo").glob("*")):
        device, _, inode = undo.name.partition("-")
        unsynced = list(_unsynced_writes(undo))
        place = places.get((int(device, 16), int(inode, 16)))
        if unsynced and place is not None:
            files += 1
            writes += len(unsynced)
            _roll_back(place, unsynced, kept_share, rng)
        undo.unlink()
    for noted in sorted((state / "lost").glob("*")):
        device, _, inode = noted.name.partition("-")
        place = places.get((int(device, 16), int(inode, 16)))
        if place is not None:
            _take_lost(place, noted.read_bytes(), kept_share, rng)
        noted.unlink()
    changes = _unsynced_changes(state / "names")
    if rng is not None and kept_share > 0:
        changes = changes[rng.randint(0, len(changes)) :]
    names = sum(_undo_change(change) for change in reversed(changes))
    (state / "names").unlink(missing_ok=True)
    for kept in (state / "kept").glob("*"):
        kept.unlink()
    return PowerLoss(files, writes, names)


def forget(state: Path) -> None:
    """Drop what the shim recorded: the machine stayed up, so the page cache reaches the disk."""
    for name in ("undo", "lost", "kept"):
        shutil.rmtree(state / name, ignore_errors=True)
    (state / "names").unlink(missing_ok=True)


def _unsynced_writes(path: Path) -> Iterator[_Write]:
    """Yield the writes that were not durable, oldest first."""
    data = path.read_bytes()
    if len(data) < _START:
        return
    magic, synced, end = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return
    at = _START if end < synced else synced
    while at < end:
        offset, old_size, length, kept, zeros = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield _Write(offset, old_size, length, bytes(kept) if zeros else data[at : at + kept])
        at += 0 if zeros else kept


def _notes(data: bytes) -> Iterator[tuple[int, int, _Write]]:
    """Yield the notes of a lost file: where each began, the bytes kept or what else it tells, and the write."""
    at = 0
    while at + _RECORD.size <= len(data):
        begin = at
        offset, old_size, length, kept, zeros = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        follows = 0 if zeros else max(kept, 0)
        yield begin, kept, _Write(offset, old_size, length, data[at : at + follows])
        at += follows


def _take_lost(path: Path, data: bytes, kept_share: float, rng: random.Random | None) -> None:
    """Put back what was there before writes that never reached the disk."""
    size = path.stat().st_size
    lost, old = bytearray(size), bytearray(size)
    synced_before = max((write.offset for _, kept, write in _notes(data) if kept == _SYNCED), default=0)
    for begin, kept, write in _notes(data):
        end = max(write.offset, min(write.offset + write.length, size))
        if kept >= 0:
            before = write.old.ljust(write.length, b"\0")
            for start, stop in _runs(lost, 0, write.offset, end):
                old[start:stop] = before[start - write.offset : stop - write.offset]
                lost[start:stop] = b"\1" * (stop - start)
        elif kept == _REWRITTEN and begin < synced_before:
            lost[write.offset : end] = bytes(end - write.offset)
    with path.open("r+b") as file:
        for start, stop in _runs(lost, 1, 0, size):
            for at in range(start, stop, SECTOR_BYTES):
                if rng is None or rng.random() >= kept_share:
                    file.seek(at)
                    file.write(old[at : min(at + SECTOR_BYTES, stop)])


def _runs(flags: bytearray, wanted: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where bytes of a range are all `wanted`, 0 or 1."""
    while (begin := flags.find(wanted, start, end)) >= 0:
        start = flags.find(1 - wanted, begin, end)
        if start < 0:
            start = end
        yield begin, start


def _roll_back(path: Path, writes: list[_Write], kept_share: float, rng: random.Random | None) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        new_size = os.fstat(descriptor).st_size
        new = _sectors(descriptor, writes) if kept_share > 0 else {}
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


def _sectors(descriptor: int, writes: list[_Write]) -> dict[int, bytes]:
    """The content, as the killed process left it, of every sector that an unsynced write touched."""
    starts = {
        start
        for write in writes
        for start in range(write.offset // SECTOR_BYTES * SECTOR_BYTES, write.offset + write.length, SECTOR_BYTES)
    }
    return {start: os.pread(descriptor, SECTOR_BYTES, start) for start in starts}


def _unsynced_changes(path: Path) -> list[_Change]:
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
                change.unsynced = {_renamed(name, source, target) for name in change.unsynced}
        elif kind in ("unlink", "rmdir"):
            kept = words[1]
        dirs = {os.path.dirname(name) for name in (source, target) if name}
        changes.append(_Change(int(serial), kind, source, target, kept, inode, dirs))
    return changes


def _renamed(name: str, source: str, target: str) -> str:
    return target + name[len(source) :] if name == source or name.startswith(source + "/") else name


def _undo_change(change: _Change) -> bool:
    """Undo one change; False if the process was killed before it came to it."""
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
