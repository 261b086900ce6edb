"""A cluster directory is founded once: no interruption ever gives a node a second identity."""

import os
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity
from dledger_admin.cluster import bootstrap
from dledger_admin.cluster.bootstrap import check_data_dir, complete_bootstrap, founding_manifest
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.manifest import read_manifest
from dledger_admin.errors import LayoutError

SEGMENT_BYTES = 1 << 20


class PowerLossError(Exception):
    """Error that stands for the end of the process."""


def found(data_dir: Path) -> None:
    """Do to the directory what one run of `up` does."""
    layout = ClusterLayout(data_dir, groups=2, nodes=3)
    check_data_dir(data_dir)
    manifest = read_manifest(data_dir) or founding_manifest(layout, None, SEGMENT_BYTES)
    complete_bootstrap(layout, manifest)


def identities(data_dir: Path) -> dict[str, object]:
    return {path.name: read_identity(OsDisk(str(path))) for path in data_dir.glob("broker-*")}


def test_each_node_of_a_group_is_a_founding_voter_with_the_incarnation_of_the_manifest(tmp_path):
    found(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.complete
    for group, founders in manifest.groups.items():
        for founder in founders:
            identity = read_identity(OsDisk(str(tmp_path / founder.node_id)))
            assert (identity.cluster, identity.group, identity.node_id) == (manifest.cluster, group, founder.node_id)
            assert identity.incarnation == founder.incarnation
            assert identity.segment_bytes == SEGMENT_BYTES
            assert [(v.node_id, v.incarnation) for v in identity.initial.voters] == [
                (other.node_id, other.incarnation) for other in founders
            ]


def test_the_secret_is_readable_by_its_owner_only_and_lasts(tmp_path):
    found(tmp_path)
    before = (tmp_path / "secret").read_bytes()
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    found(tmp_path)
    assert (tmp_path / "secret").read_bytes() == before


def test_a_crash_at_any_step_is_completed_by_the_next_run_without_a_second_identity(tmp_path, monkeypatch):
    real = {name: getattr(os, name) for name in ("fsync", "rename", "mkdir")}
    steps = 0
    fail_at = 0

    def step(name):
        def interrupted(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps == fail_at:
                raise PowerLossError
            return real[name](*arguments, **options)

        return interrupted

    for name in real:
        monkeypatch.setattr(os, name, step(name))

    interruptions = 0
    while True:
        data_dir = tmp_path / str(fail_at)
        fail_at, steps = fail_at + 1, 0
        try:
            found(data_dir)
        except PowerLossError:
            interruptions += 1
        else:
            break
        promised = read_manifest(data_dir)
        begun = identities(data_dir)
        fail_at, at = 0, fail_at
        found(data_dir)
        fail_at = at
        after = read_manifest(data_dir)
        assert after.complete
        if promised is not None:
            assert after.groups == promised.groups, f"interrupted at step {at}"
        assert {name: one for name, one in identities(data_dir).items() if name in begun} == begun
        assert set(identities(data_dir)) == {f"broker-{g}-n{k}" for g in "ab" for k in range(3)}
        assert not list(data_dir.glob(".*.tmp")), f"interrupted at step {at}"
    assert interruptions > 20


def test_a_node_directory_that_vanished_after_completion_is_not_founded_again(tmp_path):
    found(tmp_path)
    shutil.rmtree(tmp_path / "broker-a-n1")
    found(tmp_path)
    assert not (tmp_path / "broker-a-n1").exists()


def test_a_foreign_node_directory_stops_an_incomplete_bootstrap(tmp_path):
    found(tmp_path)
    manifest = read_manifest(tmp_path)
    for path in (tmp_path / "broker-a-n1").glob("identity*"):
        path.unlink()
    with pytest.raises(LayoutError, match=r"broker-a-n1 is there before .* move it away"):
        complete_bootstrap(ClusterLayout(tmp_path, 2, 3), msgspec.structs.replace(manifest, complete=False))


def test_a_path_with_foreign_files_or_a_file_is_refused_and_unchanged(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(LayoutError, match=r"not empty \(thesis.txt\) and holds no cluster.json"):
        check_data_dir(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]
    with pytest.raises(LayoutError, match="is a file: give a directory"):
        check_data_dir(tmp_path / "thesis.txt")


def test_leftovers_of_an_interrupted_first_step_do_not_block_a_bootstrap(tmp_path):
    for name in bootstrap._LEFTOVER_FILES:
        (tmp_path / name).write_text("half")
    check_data_dir(tmp_path)


def test_a_manifest_of_a_newer_format_or_a_damaged_one_is_named(tmp_path):
    found(tmp_path)
    path = tmp_path / "cluster.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(LayoutError, match="has format 9, this program knows up to 1"):
        read_manifest(tmp_path)
    path.write_text("{")
    with pytest.raises(LayoutError, match=r"cluster.json is not a cluster manifest"):
        read_manifest(tmp_path)
