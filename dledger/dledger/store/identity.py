"""Identity of a node directory: `identity.json`, its copy, and the lock that keeps a second process out.

`identity.json` and `identity.copy.json` hold the same JSON object. Its `checksum` is the crc32 of the object without
it, encoded with sorted keys and no spaces. An object without a checksum was written by an older version. If one file
has rotted, the other still names the directory's owner.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

import msgspec

from dledger.errors import IdentityError, UnreadableIdentityError
from dledger.store.disk import Disk, write_file_durably
from dledger.store.unreadable import salvage
from dledger.types import NATIVE_ENGINE, Membership
from dledger_base.checksum import crc32

PATH = "identity.json"
COPY_PATH = "identity.copy.json"
LOCK_NAME = "lock"
FORMAT = 1
ENGINE_FORMAT = 2
"""Format of an identity that names an engine. Versions that know no engines must not open another engine's log."""


class Identity(msgspec.Struct, frozen=True):
    """Owner of a node directory: its cluster, group, node and incarnation.

    `segment_bytes` is a property of the group, because all replicas hold identical bytes. `initial` is only set in a
    directory that a bootstrap made, because only a bootstrap makes voters. `engine` is that of the whole group.
    `group_id` is the identity of the group (`dledger_base.group_identity`). It is empty until a joining node knows it
    from the log, and None if an older version wrote the file.
    """

    format: int
    cluster: str
    group: str
    node_id: str
    incarnation: str
    segment_bytes: int
    initial: Membership | None = None
    engine: str = NATIVE_ENGINE
    group_id: str | None = None


class IdentityFiles:
    """Both files of a running node, and the content that they should have."""

    def __init__(self, disk: Disk, identity: Identity) -> None:
        self.identity = self._scrubbed_identity = identity
        self._disk = disk

    def scrub(self) -> int:
        """Write copies anew that differ from `identity`, and return the number of rotten copies.

        Blocks; raises `OSError`.
        """
        identity = self.identity
        rewritten = scrub_identity(self._disk, identity)
        has_changed, self._scrubbed_identity = identity != self._scrubbed_identity, identity
        return 0 if has_changed else len(rewritten)


class _DoubtfulFormatError(IdentityError):
    """Format newer than this version's, in a file whose checksum is wrong."""


def read_identity(disk: Disk, directory: str = "the data directory") -> Identity | None:
    """Return the identity of a directory, or None if it has none.

    Raises `UnreadableIdentityError` if neither file can be read as an identity, and `IdentityError` if the format is
    newer than this version's. A file of a newer version is never passed over. A file is passed over if its format
    number has rotted.
    """
    doubtful_format: IdentityError | None = None
    unreadable: UnreadableIdentityError | None = None
    for path in (PATH, COPY_PATH):
        try:
            found = _read(disk, path, directory)
        except _DoubtfulFormatError as error:
            doubtful_format = doubtful_format or error
        except UnreadableIdentityError as error:
            unreadable = unreadable or error
        else:
            if found is not None:
                return found
    failure = doubtful_format or unreadable
    if failure is not None:
        raise failure
    return None


def scrub_identity(disk: Disk, identity: Identity) -> list[str]:
    """Write each of the two files anew that differs from `identity`, and return their paths.

    Blocks; raises `OSError`.
    """
    raw = _encode(identity)
    rewritten = [path for path in (COPY_PATH, PATH) if _read_file(disk, path) != raw]
    for path in rewritten:
        write_file_durably(disk, path, raw)
    return rewritten


def write_identity(disk: Disk, identity: Identity) -> None:
    """Write the identity, atomically and durably. The copy comes first, because `identity.json` is read first."""
    raw = _encode(identity)
    for path in (COPY_PATH, PATH):
        write_file_durably(disk, path, raw)


def _encode(identity: Identity) -> bytes:
    content = msgspec.to_builtins(identity)
    content["format"] = ENGINE_FORMAT
    if identity.engine == NATIVE_ENGINE:
        content["format"] = FORMAT
        del content["engine"]
    if identity.group_id is None:
        del content["group_id"]
    return msgspec.json.format(msgspec.json.encode(content | {"checksum": _checksum(content)})) + b"\n"


def _checksum(content: dict[str, object]) -> int:
    return crc32(msgspec.json.encode(content, order="sorted"))


def _read_file(disk: Disk, path: str) -> bytes | None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return salvage(file, file.size(), 0)
    finally:
        file.close()


def _read(disk: Disk, path: str, directory: str) -> Identity | None:
    raw = _read_file(disk, path)
    if raw is None:
        return None
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        content = msgspec.json.decode(raw, type=dict[str, object])
        stored_checksum = content.pop("checksum", None)
        is_whole = stored_checksum is None or stored_checksum == _checksum(content)
        if version in (FORMAT, ENGINE_FORMAT):
            if not is_whole:
                raise msgspec.ValidationError(f"its checksum is {stored_checksum}, its content's {_checksum(content)}")
            return msgspec.convert(content, Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableIdentityError(
            f"{directory}: {path} is not readable as an identity ({error}); restore it"
        ) from error
    kind = IdentityError if is_whole else _DoubtfulFormatError
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
    """Raise `IdentityError` unless a directory has the expected owner. `segment_bytes` None accepts any size."""
    for key, actual, expected in (
        ("cluster", found.cluster, cluster),
        ("group", found.group, group),
        ("node id", found.node_id, node_id),
    ):
        if actual != expected:
            raise IdentityError(
                f"{directory} belongs to {key} {actual!r}, this node is configured as {key} {expected!r}; correct "
                "the configuration or name another data directory (nothing was changed)"
            )
    if segment_bytes is not None and found.segment_bytes != segment_bytes:
        raise IdentityError(
            f"{directory} was made with segment_bytes {found.segment_bytes}, {segment_bytes} was given; segment_bytes "
            "belongs to the group and cannot be changed later: remove the key (nothing was changed)"
        )


class DirectoryLock:
    """Exclusive lock on a node directory of the real file system, held while its process runs.

    The kernel drops it with the process, so a crash leaves no stale lock behind. The pid in the file is for people.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: str, pid: int) -> DirectoryLock:
        """Lock the directory `path`. Raises `IdentityError` with the pid of the process that holds the lock."""
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
        with suppress(OSError):  # on a full disk the pid is missing, but the lock holds
            os.pwrite(descriptor, written, 0)
            os.ftruncate(descriptor, len(written))
        return cls(descriptor)

    def release(self) -> None:
        """Unlock. Another call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
