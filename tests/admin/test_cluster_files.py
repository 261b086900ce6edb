"""Files of a cluster's directory on full disks."""

import errno
import os

import pytest

from dledger_admin.cluster import files, processes
from dledger_admin.cluster.bootstrap import complete_bootstrap, founding_manifest
from dledger_admin.cluster.config_files import Overrides, write_config_files
from dledger_admin.cluster.files import write_durably
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.manifest import write_manifest
from dledger_admin.errors import AdminError


@pytest.fixture
def full_disk(monkeypatch):
    """Return a function after whose call no file can be created or written, as if no directory entry fitted."""

    def refuse(path, flags, *rest, **more):
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, *rest, **more)

    opened = os.open
    return lambda: monkeypatch.setattr(os, "open", refuse)


def test_up_rewrites_only_files_that_changed(tmp_path, full_disk):
    layout = ClusterLayout(tmp_path / "c", groups=1, nodes=3)
    manifest = complete_bootstrap(layout, founding_manifest(layout, None, 1 << 20))
    write_config_files(layout, manifest, Overrides())
    full_disk()
    assert complete_bootstrap(layout, manifest) == manifest
    write_manifest(layout.data_dir, manifest)
    write_config_files(layout, manifest, Overrides())
    with pytest.raises(AdminError, match=r"overrides\.toml cannot be written, its disk is full .*: make room there"):
        write_config_files(layout, manifest, Overrides(brokers={"flush": "async"}))


def test_a_file_that_cannot_be_written_is_named_and_an_existing_one_gets_the_mode(tmp_path, monkeypatch):
    path = tmp_path / "cluster.json"
    write_durably(path, b"old")
    write_durably(path, b"old", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600

    def refuse(descriptor):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(AdminError, match=r"cluster\.json cannot be written, its disk is full \(Disk quota exceeded\)"):
        write_durably(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["cluster.json"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("written", ["cluster.json", "secret", "broker-a-n0"])
def test_a_first_up_on_a_full_disk_names_the_file(tmp_path, full_disk, written):
    layout = ClusterLayout(tmp_path / "c", groups=1, nodes=1)
    manifest = founding_manifest(layout, None, 1 << 20)
    layout.data_dir.mkdir()
    if written != "cluster.json":
        write_manifest(layout.data_dir, manifest)
    if written == "broker-a-n0":
        write_durably(layout.secret_file, b"0" * 64, mode=0o600)
    full_disk()
    with pytest.raises(AdminError, match=rf"/c/{written} cannot be written, its disk is full"):
        complete_bootstrap(layout, manifest)


def test_a_pid_file_that_does_not_fit_is_left_to_the_process(tmp_path, full_disk):
    full_disk()
    processes._write_pid(tmp_path / "pid", 1)
    assert not (tmp_path / "pid").exists()
