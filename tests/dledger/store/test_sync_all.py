"""One sync covers all files of a file system, if its failure would be reported."""

import ctypes
import errno
import platform
import sys
from pathlib import Path

import pytest

from dledger.store import disk as disk_module
from dledger.store.disk import OsDisk


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(str(tmp_path))


def test_sync_all_calls_syncfs_once(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(disk_module, "_syncfs", lambda: lambda descriptor: synced.append(descriptor) or 0)
    assert disk.sync_all()
    assert len(synced) == 1


HIDING = ("5.7.19-generic", "4.19.0", "unknown")
"""Kernels that hide failures."""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux only")
@pytest.mark.parametrize("release", [*HIDING, "5.8.0", "6.1.0-13-amd64", "10.0"])
def test_sync_all_is_used_only_on_kernels_that_report_failures(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert disk.sync_all() == (release not in HIDING)


def test_a_failed_syncfs_raises_an_error_and_a_missing_one_is_reported(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = errno.EIO

    def syncfs(_descriptor: int) -> int:
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(disk_module, "_syncfs", lambda: syncfs)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_all()
    code = errno.ENOSYS
    assert not disk.sync_all()
