"""Whose directory this is: `identity.json`, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

import msgspec

from dledger.errors import IdentityError
from dledger.store.disk import Disk, write_file_durably
from dledger.types import Membership

PATH = "identity.json"
LOCK_NAME = "lock"
FORMAT = 1
"""The format that this version writes; it reads this one only."""


class Identity(msgspec.Struct, frozen=True):
    """What a node directory belongs to.

    `segment_bytes` is a property of the group: all replicas hold identical bytes.  `initial` is there only in a
    directory that a bootstrap made, for only a bootstrap mints voters.
    """

    format: int
    cluster: str
    group: str
    node_id: str
    incarnation: str
    segment_bytes: int
    initial: Membership | None = None


def read_identity(disk: Disk, directory: str = "the data directory") -> Identity | None:
    """The identity of a directory, or None if it has none.

    Raises `IdentityError` if the file cannot be read as one or its format is newer than this version's.
    """
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        if version == FORMAT:
            return msgspec.json.decode(raw, type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IdentityError(
            f"{directory}: {PATH} is not readable as an identity ({error}); restore it, or empty the directory so that "
            "the node rejoins as a new incarnation"
        ) from error
    raise IdentityError(
        f"{directory}: {PATH} has format {version}, this version reads format {FORMAT}; start it with the version that "
        "wrote it, or a newer one"
    )


class _Version(msgspec.Struct):
    format: int


def write_identity(disk: Disk, identity: Identity) -> None:
    """Write the identity, atomically and durably."""
    write_file_durably(disk, PATH, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")


def check_identity(
    found: Identity,
    *,
    cluster: str,
    group: str,
    node_id: str,
    segment_bytes: int | None = None,
    directory: str = "the data directory",
) -> None:
    """Raise `IdentityError` unless a directory is the expected one's.  `segment_bytes` None accepts any."""
    for key, is_value, expected in (
        ("cluster", found.cluster, cluster),
        ("group", found.group, group),
        ("node id", found.node_id, node_id),
    ):
        if is_value != expected:
            raise IdentityError(
                f"{directory} belongs to {key} {is_value!r}, this node is configured as {key} {expected!r}; correct "
                "the configuration or name another data directory (nothing was changed)"
            )
    if segment_bytes is not None and found.segment_bytes != segment_bytes:
        raise IdentityError(
            f"{directory} was made with segment_bytes {found.segment_bytes}, {segment_bytes} was given; segment_bytes "
            "belongs to the group and cannot be changed later: remove the key (nothing was changed)"
        )


class DirectoryLock:
    """An exclusive lock on a node directory of the real file system, held while its process runs.

    The kernel drops it with the process, so a crash leaves no stale lock behind; the pid in the file is for people.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: str, pid: int) -> DirectoryLock:
        """Lock the directory `path`.  Raises `IdentityError` naming the pid of the process that holds it."""
        descriptor = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise IdentityError(
                f"{path} is in use by the live process {holder}; stop that one first or name another data directory"
            ) from error
        written = b"%d\n" % pid
        with suppress(OSError):  # a full disk: it is locked nevertheless
            os.pwrite(descriptor, written, 0)
            os.ftruncate(descriptor, len(written))
        return cls(descriptor)

    def release(self) -> None:
        """Unlock; calling it again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
