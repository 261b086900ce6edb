"""Snapshots of the replicated state: `snapshots/<20 digits>`, each named by the segment start that is its position.

    size  field
       4  magic      "DLsn"
       4  meta crc   crc32 of the meta
       4  length     of the meta
       n  meta       MessagePack of `SnapshotMeta`
    then chunks:
       4  length     1 to 1 MiB
       4  crc        crc32 of the data
       n  data
    then the footer:
       4  0          (no chunk has this length)
       4  crc        crc32 of the two fields below and the meta crc, each as written
       8  chunks     number of chunks
       8  bytes      sum of their lengths

All numbers are big-endian. A snapshot is written as `<20 digits>.<n>.tmp`, synced and renamed, and the directory is
synced. From then on it exists.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import Lock

import msgspec

from dledger.errors import BusyError, CorruptionError, LogError, LogFullError, StorageError, TrimmedError
from dledger.store.disk import LACKING, OUT_OF_FILES, Buffer, Disk, File
from dledger.store.segments import list_positions, segment_name
from dledger.store.unreadable import read_error, salvage
from dledger.types import SnapshotMeta
from dledger_base.checksum import crc32
from dledger_base.invariants import invariant

DIRECTORY = "snapshots"
CHUNK_BYTES = 256 << 10
MAX_CHUNK_BYTES = 1 << 20
RESERVE_STEP_BYTES = 1 << 20

_MAGIC = b"DLsn"
_HEAD = struct.Struct(">4sII")
_CHUNK = struct.Struct(">II")
_COUNTS = struct.Struct(">QQ")
_FOOTER_BYTES = _CHUNK.size + _COUNTS.size
_U32 = struct.Struct(">I")
_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


def snapshot_path(position: int) -> str:
    """Return the path of the snapshot at a position."""
    return f"{DIRECTORY}/{segment_name(position)}"


@dataclass(slots=True)
class SnapshotReport:
    """Files that `SnapshotStore.open` skipped: a line for each file that does not verify."""

    invalid: list[str] = field(default_factory=list)
    rotten: list[int] = field(default_factory=list)
    """Positions of those files."""


class SnapshotWriter:
    """Writes one snapshot. `commit` or `abort` ends it. Both block, as `write` does; one thread at a time.

    The file is made with the first bytes, so that the event loop can make a writer.
    """

    def __init__(self, store: SnapshotStore, disk: Disk, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._store = store
        self._disk = disk
        self._temporary = f"{snapshot_path(meta.position)}.{store.next_number()}.tmp"
        self._encoded_meta = msgspec.msgpack.encode(meta)
        self._meta_crc = crc32(self._encoded_meta)
        self._chunks = 0
        self._bytes = 0
        self._size = 0
        self._reserved_end = 0
        self._file: File | None = None
        self._is_ended = False

    def write(self, chunk: Buffer) -> None:
        """Add data of any length.

        Raises `LogFullError` if there is no space, and `StorageError` on any other failure. `abort` is still due then.
        """
        view = memoryview(chunk)
        for at in range(0, len(view), MAX_CHUNK_BYTES):
            part = view[at : at + MAX_CHUNK_BYTES]
            self._put(b"".join((_CHUNK.pack(len(part), crc32(part)), part)))
            self._chunks += 1
            self._bytes += len(part)

    def commit(self) -> SnapshotMeta:
        """Sync, name and list the snapshot. Raises as `write` does."""
        counts = _COUNTS.pack(self._chunks, self._bytes)
        self._put(_CHUNK.pack(0, crc32(_U32.pack(self._meta_crc), crc32(counts))) + counts)
        file, self._file = self._file, None
        self._is_ended = True
        assert file is not None
        try:
            try:
                file.truncate(self._size)
                file.datasync()
            finally:
                file.close()
            self._store.name(self._temporary, self.meta)
        except OSError as error:
            with suppress(OSError):
                self._disk.unlink(self._temporary)
            raise self._error("committing", error) from error
        return self.meta

    def abort(self) -> None:
        """Drop the written file. After `commit` this does nothing."""
        self._is_ended = True
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.unlink(self._temporary)

    def _put(self, data: bytes) -> None:
        invariant(not self._is_ended, "a snapshot is written before its end", meta=self.meta)
        try:
            file = self._file or self._open()
            self._append(file, data)
        except OSError as error:
            raise self._error("writing", error) from error

    def _open(self) -> File:
        self._disk.unlink(self._temporary)
        self._file = file = self._disk.open(self._temporary, create=True)
        self._append(file, _HEAD.pack(_MAGIC, self._meta_crc, len(self._encoded_meta)) + self._encoded_meta)
        return file

    def _append(self, file: File, data: bytes) -> None:
        if self._size + len(data) > self._reserved_end:
            step = max(len(data), RESERVE_STEP_BYTES)
            file.reserve(self._size, step)
            self._reserved_end = self._size + step
        file.pwrite(data, self._size)
        self._size += len(data)

    def _error(self, action: str, error: OSError) -> LogError:
        return _storage_error(f"{action} the snapshot at {self.meta.position}", error)


class SnapshotStore:
    """Durable snapshots of a node directory. A worker may list a snapshot while the event loop drops another.

    A snapshot that does not verify is no longer listed, so that nothing is trimmed to it and it is not sent. Its file
    stays until an intact copy replaces it, or until the group has trimmed it.
    """

    def __init__(self, disk: Disk, metas: dict[int, SnapshotMeta], report: SnapshotReport) -> None:
        self.report = report
        self.chunk_bytes = CHUNK_BYTES
        """Number of bytes of a snapshot that are read, and sent, at a time."""
        self.rotten: dict[int, SnapshotMeta | None] = dict.fromkeys(report.rotten)
        """Positions of the rotten snapshots, with the meta if it is known."""
        self._disk = disk
        self._metas = metas
        self._number = 0
        self._naming_lock = Lock()
        """Held by workers while a file gets its name or is removed.

        Otherwise a snapshot that a trim just removed could be listed.
        """

    @classmethod
    def open(cls, disk: Disk) -> SnapshotStore:
        """List the snapshots, drop unfinished files, and skip (and report) files with an invalid head or footer.

        Chunks are verified when they are read, or by `verify`.
        """
        disk.mkdir(DIRECTORY)
        for name in disk.listdir(DIRECTORY):
            if name.endswith(".tmp"):
                disk.unlink(f"{DIRECTORY}/{name}")
        return cls.open_readonly(disk)

    @classmethod
    def open_readonly(cls, disk: Disk) -> SnapshotStore:
        """List the snapshots like `open`, but change nothing."""
        metas: dict[int, SnapshotMeta] = {}
        report = SnapshotReport()
        for position in list_positions(disk, DIRECTORY):
            try:
                metas[position] = _read_meta(disk, snapshot_path(position), position)
            except (CorruptionError, StorageError, OSError) as error:
                report.invalid.append(str(error))
                report.rotten.append(position)
        return cls(disk, metas, report)

    def list(self) -> list[SnapshotMeta]:
        """Return all snapshots, by ascending position."""
        return sorted(self._metas.values(), key=lambda meta: meta.position)

    def positions(self) -> frozenset[int]:
        """Return the positions of all snapshots."""
        return frozenset(self._metas)

    def latest(self) -> SnapshotMeta | None:
        """Return the snapshot at the highest position."""
        return next(reversed(self.list()), None)

    def at_or_below(self, position: int) -> SnapshotMeta | None:
        """Return the snapshot at the highest position that is not above `position`."""
        return next((meta for meta in reversed(self.list()) if meta.position <= position), None)

    def begin(self, meta: SnapshotMeta) -> SnapshotWriter:
        """Start to write a snapshot, made here or received. A commit replaces an older snapshot at the same position.

        Memory only: the disk is used by the writer's first `write` or `commit`.
        """
        return SnapshotWriter(self, self._disk, meta)

    def next_number(self) -> int:
        """Return a number that distinguishes the temporary files of writers.

        Two may write a snapshot of the same position.
        """
        self._number += 1
        return self._number

    def name(self, temporary: str, meta: SnapshotMeta) -> None:
        """Give a complete and synced file its name, durably, and list it. Blocks; raises `OSError`."""
        with self._naming_lock:
            self._disk.rename(temporary, snapshot_path(meta.position))
            self._disk.sync_dir(DIRECTORY)
            self.add(meta)

    def add(self, meta: SnapshotMeta) -> None:
        """List a snapshot whose file is durable."""
        self.rotten.pop(meta.position, None)
        self._metas[meta.position] = meta

    def size_on_disk(self, meta: SnapshotMeta) -> int:
        """Return the size of a snapshot's file; 0 if it is gone or the disk cannot report it. Blocks."""
        try:
            return self._disk.stat(snapshot_path(meta.position)).size_on_disk
        except OSError:
            return 0

    def read_chunks(self, meta: SnapshotMeta, chunk: int | None = None) -> Generator[bytes]:
        """Yield the data in pieces of `chunk` bytes, by default `chunk_bytes`. Each piece is verified before.

        The last piece may be shorter. The snapshot may be deleted meanwhile, because its file is open until the end, or
        until the generator is closed, which blocks. Raises `CorruptionError` at the first byte that does not verify.
        Raises `TrimmedError` if the snapshot was deleted before the first read. Raises `BusyError` if the process may
        open no more files now, or `StorageError`.
        """
        chunk = self.chunk_bytes if chunk is None else chunk
        pending: list[bytes] = []
        size = 0
        with closing(_read_data(self._disk, meta)) as read:
            for data in read:
                pending.append(data)
                size += len(data)
                if size >= chunk:
                    joined = b"".join(pending)
                    whole_bytes = size - size % chunk
                    for at in range(0, whole_bytes, chunk):
                        yield joined[at : at + chunk]
                    pending = [joined[whole_bytes:]]
                    size -= whole_bytes
        if size:
            yield b"".join(pending)

    def verify(self, meta: SnapshotMeta) -> None:
        """Read the whole snapshot, including head and footer. Raises as `read_chunks`."""
        for _ in self.verify_in_steps(meta):
            pass

    def verify_in_steps(self, meta: SnapshotMeta) -> Generator[int]:
        """Verify like `verify`, chunk by chunk; yields the size of each chunk."""
        with closing(_read_data(self._disk, meta)) as read:
            for data in read:
                yield len(data)

    def forget(self, position: int) -> None:
        """Stop listing a snapshot that is not needed here. The file stays."""
        self._metas.pop(position, None)

    def condemn(self, position: int) -> None:
        """Stop listing a snapshot that does not verify."""
        self.rotten.setdefault(position, self._metas.pop(position, None))

    def delete(self, position: int) -> None:
        """Remove a snapshot. Its present readers may go on. Blocks; raises `OSError`."""
        with self._naming_lock:
            self.forget(position)
            self.rotten.pop(position, None)
            self._disk.unlink(snapshot_path(position))

    def remove_below(self, position: int) -> None:
        """Remove the files of all snapshots below a position, listed or not. Blocks; raises `OSError`."""
        for start in list_positions(self._disk, DIRECTORY):
            if start < position:
                self.delete(start)

    def read_file(self, position: int, offset: int, size: int) -> tuple[bytes, int]:
        """Return bytes of a listed snapshot's file, unverified, and the size of that file.

        Raises `TrimmedError` if there is none, `CorruptionError` or `StorageError`.
        """
        if position not in self._metas:
            raise TrimmedError(f"there is no snapshot at {position}")
        path = snapshot_path(position)
        file = _open(self._disk, path)
        try:
            return file.pread(size, offset), file.size()
        except OSError as error:
            raise read_error(f"reading {path}", error) from error
        finally:
            file.close()

    def copy(self, position: int) -> SnapshotCopy:
        """Begin to collect the bytes of another replica's snapshot file. Raises `LogFullError` or `StorageError`."""
        return SnapshotCopy(self, self._disk, position)


class SnapshotCopy:
    """Copy of a peer's snapshot file, which replaces a rotten file once it verifies.

    Methods block and are called on one thread at a time. `commit` or `abort` ends it.
    """

    def __init__(self, store: SnapshotStore, disk: Disk, position: int) -> None:
        self.position = position
        self.filled = 0
        self._store = store
        self._disk = disk
        self._path = f"{snapshot_path(position)}.{store.next_number()}.tmp"
        try:
            disk.unlink(self._path)
            self._file: File | None = disk.open(self._path, create=True)
        except OSError as error:
            raise _storage_error(f"copying the snapshot at {position}", error) from error

    def write(self, data: Buffer) -> None:
        """Add the next bytes. Raises `LogFullError` or `StorageError`."""
        assert self._file is not None
        try:
            self._file.pwrite(data, self.filled)
        except OSError as error:
            raise _storage_error(f"copying the snapshot at {self.position}", error) from error
        self.filled += len(data)

    def verify(self) -> SnapshotMeta:
        """Read the collected bytes as a snapshot. Raises `CorruptionError` if they are none, or `StorageError`."""
        return read_copy(self._disk, self._path, self.position)

    def commit(self, meta: SnapshotMeta) -> None:
        """Sync, name and list the snapshot that `verify` returned. Raises `LogFullError` or `StorageError`."""
        file, self._file = self._file, None
        assert file is not None
        try:
            try:
                file.datasync()
            finally:
                file.close()
            self._store.name(self._path, meta)
        except OSError as error:
            with suppress(OSError):
                self._disk.unlink(self._path)
            raise _storage_error(f"copying the snapshot at {self.position}", error) from error

    def abort(self) -> None:
        """Drop the collected bytes. After `commit` this does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.unlink(self._path)


def read_copy(disk: Disk, path: str, position: int) -> SnapshotMeta:
    """Read a file as the snapshot at a position, to its end. Raises `CorruptionError` or `StorageError`."""
    meta = _read_meta(disk, path, position)
    for _ in _read_data(disk, meta, path):
        pass
    return meta


def _storage_error(action: str, error: OSError) -> LogError:
    if error.errno in LACKING:
        return LogFullError(f"no space for {action}: {error}")
    return StorageError(f"{action} failed: {error}")


def _open(disk: Disk, path: str) -> File:
    try:
        return disk.open(path)
    except FileNotFoundError:
        raise TrimmedError(f"the snapshot {path} was deleted") from None
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            raise BusyError(f"opening {path} is tried again later: {error}") from error
        raise read_error(f"opening {path}", error) from error


def _read_meta(disk: Disk, path: str, position: int) -> SnapshotMeta:
    """Return the meta of a file whose head and footer verify, else raise `CorruptionError`."""
    file = _open(disk, path)
    try:
        size = file.size()
        meta, crc, head_bytes = _read_head(file, path)
        if size < head_bytes + _FOOTER_BYTES:
            raise CorruptionError(f"{path}: {size} bytes, too short for a footer")
        _verify_footer(path, salvage(file, _FOOTER_BYTES, size - _FOOTER_BYTES), crc)
        if meta.position != position:
            raise CorruptionError(f"{path}: holds the snapshot at {meta.position}")
        return meta
    finally:
        file.close()


def _read_head(file: File, path: str) -> tuple[SnapshotMeta, int, int]:
    """Return (meta, its crc, the offset where the chunks begin)."""
    head = salvage(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise CorruptionError(f"{path}: {len(head)} bytes are no snapshot")
    magic, crc, length = _HEAD.unpack(head)
    raw = salvage(file, length, _HEAD.size) if magic == _MAGIC and length <= MAX_CHUNK_BYTES else b""
    if not raw or crc32(raw) != crc:
        raise CorruptionError(f"{path}: magic {magic!r}, or a meta that does not verify")
    try:
        return _decode_meta(raw), crc, _HEAD.size + length
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{path}: {error}") from error


def _verify_footer(path: str, footer: bytes, meta_crc: int) -> tuple[int, int]:
    """Return (chunks, bytes) according to a footer."""
    if len(footer) == _FOOTER_BYTES:
        zero, crc = _CHUNK.unpack_from(footer)
        if zero == 0 and crc == crc32(_U32.pack(meta_crc), crc32(footer[_CHUNK.size :])):
            chunks, size = _COUNTS.unpack_from(footer, _CHUNK.size)
            return chunks, size
    raise CorruptionError(f"{path}: the footer does not verify")


def _read_data(disk: Disk, meta: SnapshotMeta, path: str = "") -> Generator[bytes]:
    """Yield the verified data of each chunk. It only ends normally if head and footer agree with the data."""
    path = path or snapshot_path(meta.position)
    file = _open(disk, path)
    try:
        meta_found, meta_crc, offset = _read_head(file, path)
        if meta_found != meta:
            raise CorruptionError(f"{path}: holds {meta_found}, {meta} was written")
        chunks = total = 0
        while True:
            head = file.pread(_CHUNK.size, offset)
            if len(head) < _CHUNK.size:
                raise CorruptionError(f"{path}: ends at byte {offset} without a footer")
            size, crc = _CHUNK.unpack(head)
            if size == 0:
                break
            data = file.pread(size, offset + _CHUNK.size) if size <= MAX_CHUNK_BYTES else b""
            if len(data) != size or crc32(data) != crc:
                raise CorruptionError(f"{path}: the chunk at byte {offset} does not verify")
            yield data
            chunks += 1
            total += size
            offset += _CHUNK.size + size
        if _verify_footer(path, file.pread(_FOOTER_BYTES, offset), meta_crc) != (chunks, total):
            raise CorruptionError(f"{path}: {chunks} chunks of {total} bytes are not what the footer says")
        if file.size() != offset + _FOOTER_BYTES:
            raise CorruptionError(f"{path}: bytes follow the footer")
    except OSError as error:
        raise read_error(f"reading {path}", error) from error
    finally:
        file.close()
