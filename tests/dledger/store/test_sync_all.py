"""One sync for all files of a file system, where its failure would be told."""

import ctypes
import errno
import platform
import sys
from pathlib import Path

import pytest

from dledger.store import disk as disk_module
from dledger.store.disk import OsDisk


def test_it_is_done_on_linux_and_tells_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(disk_module, "_syncfs", lambda: lambda descriptor: synced.append(descriptor) or 0)
    assert OsDisk(str(tmp_path)).sync_all()
    assert len(synced) == 1


@pytest.mark.parametrize("release", ["5.7.19-generic", "4.19.0", "unknown"])
def test_a_kernel_that_would_not_tell_of_a_failure_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert not OsDisk(str(tmp_path)).sync_all()


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux only")
@pytest.mark.parametrize("release", ["5.8.0", "6.1.0-13-amd64", "10.0"])
def test_a_younger_kernel_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert OsDisk(str(tmp_path)).sync_all()


def fails_with(code: int):
    def syncfs(_descriptor: int) -> int:
        ctypes.set_errno(code)
        return -1

    return lambda: syncfs


def test_what_could_not_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_syncfs", fails_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        OsDisk(str(tmp_path)).sync_all()


def test_a_system_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_syncfs", fails_with(errno.ENOSYS))
    assert not OsDisk(str(tmp_path)).sync_all()
