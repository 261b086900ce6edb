"""Unreadable sectors in real files. A read fails with EIO until the sector is written."""

import errno
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from dledger.store.disk import Buffer, OsDisk, OsFile
from dledger.store.unreadable import PAGE_BYTES


class Bad(NamedTuple):
    """Unreadable range of a file. `number` is the disk's error number."""

    path: Path
    begin: int
    end: int
    number: int


class BadSectors:
    """Patch of the disk. Reads of these sectors fail. A write that covers a sector heals it, unless `heals` is off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: list[Bad] = []
        self.heals = True
        self._paths: dict[int, Path] = {}
        opened, read, wrote = OsDisk.open, OsFile.pread, OsFile.pwrite

        def open_file(disk: OsDisk, path: str, *, create: bool = False, write_through: bool = False) -> OsFile:
            file = opened(disk, path, create=create, write_through=write_through)
            self._paths[id(file)] = Path(disk.root) / path
            return file

        def pread(file: OsFile, size: int, offset: int) -> bytes:
            for one in self._of(file):
                if offset < one.end and one.begin < offset + size:
                    raise OSError(one.number, os.strerror(one.number), str(one.path))
            return read(file, size, offset)

        def pwrite(file: OsFile, data: Buffer, offset: int) -> None:
            if self.heals:
                end = offset + len(data)
                self.bad = [one for one in self.bad if one not in self._of(file) or one.begin < offset or end < one.end]
            wrote(file, data, offset)

        monkeypatch.setattr(OsDisk, "open", open_file)
        monkeypatch.setattr(OsFile, "pread", pread)
        monkeypatch.setattr(OsFile, "pread_nowait", lambda *_: None)
        monkeypatch.setattr(OsFile, "pwrite", pwrite)

    def _of(self, file: OsFile) -> list[Bad]:
        path = self._paths.get(id(file))
        return [one for one in self.bad if one.path == path]

    def add(self, path: Path, begin: int = 0, size: int = PAGE_BYTES, number: int = errno.EIO) -> None:
        """Make a range of a file unreadable."""
        self.bad.append(Bad(path, begin, begin + size, number))
