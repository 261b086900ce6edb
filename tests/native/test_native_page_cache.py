"""The native read of cached pages and its twin in Python return the same of any file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.store.disk import OsFile
from dledger_base import native_part

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

CONTENT = bytes(range(256)) * 40
"""Content of more than two pages."""


def _by_twin(file: OsFile, size: int, offset: int) -> bytes | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_part, "PART", None)
        return file.pread_nowait(size, offset)


READS: dict[str, Callable[[OsFile, int, int], bytes | None]] = {"native": OsFile.pread_nowait, "twin": _by_twin}


@pytest.fixture(autouse=True)
def native_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_part, "PART", native)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> OsFile:
    path = tmp_path_factory.mktemp("files") / "file"
    path.write_bytes(CONTENT)
    return OsFile(os.open(path, os.O_RDONLY), str(path))


@given(size=st.integers(0, 300) | st.integers(0, 2 * len(CONTENT)), offset=st.integers(0, len(CONTENT) + 10))
def test_all_or_nothing_is_read(file: OsFile, size: int, offset: int):
    whole = offset + size <= len(CONTENT) or size == 0
    expected = CONTENT[offset : offset + size] if whole else None
    assert {name: read(file, size, offset) for name, read in READS.items()} == dict.fromkeys(READS, expected)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_file_that_is_closed_is_an_error(read: Callable[[OsFile, int, int], bytes | None], tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        read(OsFile(descriptor, "closed"), 1, 0)
    assert raised.value.errno == errno.EBADF, "by its number a sector that cannot be read is told from other errors"


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_file_system_without_cached_reads_gives_nothing(read: Callable[[OsFile, int, int], bytes | None]):
    descriptor = os.open("/proc/self/status", os.O_RDONLY)  # this file system does not support such reads
    try:
        assert read(OsFile(descriptor, "status"), 1, 0) is None
    finally:
        os.close(descriptor)
