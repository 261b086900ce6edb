"""Whose directory this is: `identity.json`, its copy, and the lock that keeps a second process out.

`identity.json` and `identity.copy.json` hold the same JSON object.  Its `checksum` is the crc32 of the object without
it, encoded with sorted keys and no spaces; an object that has none was written by an older version.  Either file tells
whose the directory is if the other one has rotted.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

import msgspec

from dledger.checksum import crc32
from dledger.errors import IdentityError, UnreadableIdentityError
from dledger.store.disk import Disk, write_file_durably
from dledger.types import NATIVE_ENGINE, Membership

PATH = "identity.json"
COPY_PATH = "identity.copy.json"
LOCK_NAME = "lock"
FORMAT = 1
ENGINE_FORMAT = 2
"""That of an identity which names an engine: versions that know of none must not go on with the log of another one."""


class Identity(msgspec.Struct, frozen=True):
    """What a node directory belongs to.

    `segment_bytes` is a property of the group: all replicas hold identical bytes.  `initial` is there only in a
    directory that a bootstrap made, for only a bootstrap mints voters.  `engine` is that of the whole group.
    """

    format: int
    cluster: str
    group: str
    node_id: str
    incarnation: str
    segment_bytes: int
    initial: Membership | None = None
    engine: str = NATIVE_ENGINE


class _DoubtfulFormatError(IdentityError):
    """A format that is newer than this version's, in a file whose checksum is wrong."""


def read_identity(disk: Disk, directory: str = "the data directory") -> Identity | None:
    """The identity of a directory, or None if it has none.

    Raises `UnreadableIdentityError` if neither file can be read as one, `IdentityError` if the format is newer than
    this version's. A file that a newer version wrote is not passed over; one whose number of the format has rotted is.
    """
    doubtful: IdentityError | None = None
    unreadable: UnreadableIdentityError | None = None
    for path in (PATH, COPY_PATH):
        try:
            found = _read(disk, path, directory)
        except _DoubtfulFormatError as error:
            doubtful = doubtful or error
        except UnreadableIdentityError as error:
            unreadable = unreadable or error
        else:
            if found is not None:
                return found
    worst = doubtful or unreadable
    if worst is not None:
        raise worst
    return None


def scrub_identity(disk: Disk, identity: Identity) -> list[str]:
    """Write each of the two files anew that does not say `identity`; returns their paths.  Blocks; raises `OSError`."""
    raw = _encode(identity)
    rewritten = [path for path in (COPY_PATH, PATH) if _read_file(disk, path) != raw]
    for path in rewritten:
        write_file_durably(disk, path, raw)
    return rewritten


def write_identity(disk: Disk, identity: Identity) -> None:
    """Write the identity, atomically and durably; the copy first, for `identity.json` is what counts."""
    raw = _encode(identity)
    for path in (COPY_PATH, PATH):
        write_file_durably(disk, path, raw)


def _encode(identity: Identity) -> bytes:
    content = msgspec.to_builtins(identity)
    content["format"] = ENGINE_FORMAT
    if identity.engine == NATIVE_ENGINE:
        content["format"] = FORMAT
        del content["engine"]
    return msgspec.json.format(msgspec.json.encode(content | {"checksum": _checksum(content)})) + b"\n"


def _checksum(content: dict[str, object]) -> int:
    return crc32(msgspec.json.encode(content, order="sorted"))


def _read_file(disk: Disk, path: str) -> bytes | None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _read(disk: Disk, path: str, directory: str) -> Identity | None:
    raw = _read_file(disk, path)
    if raw is None:
        return None
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        content = msgspec.json.decode(raw, type=dict[str, object])
        told = content.pop("checksum", None)
        whole = told is None or told == _checksum(content)
        if version in (FORMAT, ENGINE_FORMAT):
            if not whole:
                raise msgspec.ValidationError(f"its checksum is {told}, its content's {_checksum(content)}")
            return msgspec.convert(content, Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableIdentityError(
            f"{directory}: {path} is not readable as an identity ({error}); restore it"
        ) from error
    kind = IdentityError if whole else _DoubtfulFormatError
    raise kind(
        f"{directory}: {path} has format {version}, this version reads formats up to {ENGINE_FORMAT}; start it with "
        "the version that wrote it, or a newer one"
    )


class _Version(msgspec.Struct):
    format: int


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
