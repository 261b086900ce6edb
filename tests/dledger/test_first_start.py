"""A first start that is cut short loses nothing. A directory that lost a file comes back as another node."""

import errno
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.config import ReplicaConfig
from dledger.errors import IdentityError, LostDirectoryError, StorageError
from dledger.replica.start.boot import accept_loss
from dledger.replica.start.opening import STARTED, Opened, lost_directory_identity, open_directory, set_aside
from dledger.store.disk import File, OsDisk
from dledger.store.identity import Identity
from dledger.types import HardState

SEGMENT_BYTES = 64 << 10


class FailingDisk(OsDisk):
    """Disk that fails after `lives` changes."""

    def __init__(self, root: str, lives: int) -> None:
        super().__init__(root)
        self.lives = lives

    def _change(self) -> None:
        if self.lives == 0:
            raise OSError(errno.EIO, "the power is gone")
        self.lives -= 1

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> File:
        if create:
            self._change()
        return super().open(path, create=create, write_through=write_through)

    def mkdir(self, path: str) -> None:
        self._change()
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self._change()
        super().sync_dir(path)


CONFIG = ReplicaConfig("c", "g", "n0", frozenset({"n0"}), segment_bytes=SEGMENT_BYTES)


@pytest.fixture
def disk(tmp_path) -> OsDisk:
    return OsDisk(str(tmp_path))


def mint() -> str:
    return uuid.uuid4().hex


def come_back(disk: OsDisk) -> Identity:
    """Set the directory aside as a node does that lost a file, once a leader has answered."""
    return set_aside(disk, lost_directory_identity(disk, CONFIG, mint), mint)


def start(disk: OsDisk, *, bootstrap: bool = True) -> Opened:
    opened = open_directory(disk, CONFIG, mint, bootstrap=bootstrap)
    opened.store.close()
    opened.hard_state_file.close()
    return opened


@pytest.mark.parametrize("lives", range(1, 30))
def test_a_founder_whose_first_start_was_cut_short_is_still_a_voter(tmp_path, lives):
    disk = FailingDisk(str(tmp_path), lives)
    try:
        start(disk)
    except (OSError, StorageError):
        assert disk.lives == 0
    opened = start(OsDisk(str(tmp_path)))
    assert opened.identity.initial is not None
    assert opened.hard_state == HardState()
    assert not opened.notes
    assert not (tmp_path / "aside-0").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"cluster": "c2"},
        {"group": "g2"},
        {"node_id": "n1", "peers": frozenset({"n1"})},
        {"segment_bytes": 2 * SEGMENT_BYTES},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_start_in_the_directory_of_another_node_is_refused_and_changes_nothing(
    tmp_path: Path, disk: OsDisk, other: dict[str, Any]
) -> None:
    start(disk)
    (tmp_path / "identity.copy.json").write_bytes(b"rotten")  # a start of its own node would write it anew
    before = content(tmp_path)
    with pytest.raises(IdentityError):
        open_directory(disk, replace(CONFIG, **other), mint, bootstrap=True)
    assert content(tmp_path) == before


def content(directory: Path) -> dict[Path, bytes]:
    """Return the bytes of all files below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_late_bootstrap_founds_nothing_and_says_so(disk):
    assert not start(disk, bootstrap=False).notes
    late = start(disk)
    assert late.identity.initial is None
    [note] = late.notes
    assert note.startswith("bootstrap founds nothing")


def test_a_start_that_was_never_elected_keeps_its_incarnation(disk, tmp_path):
    assert start(disk).identity == start(disk).identity
    assert (tmp_path / STARTED).exists()


@pytest.mark.parametrize(
    ("lost", "text"),
    [("raft/hardstate", "raft/hardstate"), ("raft/mark", "raft/mark"), ("identity", "(?=.*identity).*holds a log")],
)
def test_a_directory_that_lost_a_promise_is_refused_until_set_aside(disk, tmp_path, lost, text):
    first = start(disk)
    for path in tmp_path.glob(f"{lost}*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(LostDirectoryError, match=text):
            start(disk)
        assert (tmp_path / "identity.json").exists() == (lost != "identity"), "a bootstrap founds nothing"
        assert not (tmp_path / "aside-0").exists()
    left = come_back(disk)
    second = start(disk, bootstrap=False)
    assert second.identity == left
    assert second.identity.incarnation != first.identity.incarnation
    assert second.identity.initial is None
    assert (tmp_path / "aside-0").is_dir()
    assert not second.notes


def test_a_directory_that_lost_its_mark_and_its_log_is_lost(disk, tmp_path):
    start(disk)
    (tmp_path / "raft/mark").unlink()
    for segment in (tmp_path / "commitlog").iterdir():
        segment.unlink()
    accept_loss(disk)
    with pytest.raises(LostDirectoryError):
        start(disk)


@pytest.mark.parametrize("lives", range(16))
def test_setting_a_log_aside_can_be_cut_short_anywhere(disk, tmp_path, lives):
    first = start(disk)
    (tmp_path / "raft/mark").unlink()
    try:
        come_back(FailingDisk(str(tmp_path), lives))
        start(disk)
    except (OSError, StorageError):
        try:
            start(disk)
        except LostDirectoryError:
            come_back(disk)
    second = start(disk)
    assert second.identity.incarnation != first.identity.incarnation
    assert second.store.last_index == -1
    assert second.hard_state == HardState()
