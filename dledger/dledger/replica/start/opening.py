"""Opening of a node directory: recovers the log, and refuses a directory that has lost part of it.

A directory may have lost its identity, its durable mark, its hard state, or the snapshot that its log begins behind.
This node must not act as the same member, because its acknowledgements or votes may be gone. Once a leader that lists
the node answers (`dledger.replica.start.inquiries`), the log is set aside under `aside-<n>/`. The node then comes back
as another incarnation, which the leader adds as a learner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine, EngineKind, EngineStart, KnownLog
from dledger.environment import Environment
from dledger.errors import (
    CorruptionError,
    IdentityError,
    LostDirectoryError,
    MarkContradictedError,
    StorageError,
    UnreadableIdentityError,
    UnreadableResetError,
)
from dledger.replica.start.boot import BootFile, BootRecord, distrust_boot, is_loss_accepted, note_boot
from dledger.store.disk import LACKING, Disk
from dledger.store.earlier import join_earlier
from dledger.store.hardstate import PATH as HARD_STATE_PATH
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import (
    Identity,
    IdentityFiles,
    check_identity,
    read_identity,
    scrub_identity,
    write_identity,
)
from dledger.store.log import LogStore
from dledger.store.mark import PATH as MARK_PATH
from dledger.store.mark import DurableMark
from dledger.store.recovered import Recovery
from dledger.store.reset import PATH as RESET_PATH
from dledger.store.segments import DIRECTORY as SEGMENTS
from dledger.store.segments import list_positions
from dledger.store.snapshots import SnapshotStore
from dledger.types import NATIVE_ENGINE, HardState, Membership, ReplicaId
from dledger_base.group_identity import GroupIdentity

IDENTITY_FORMAT = 1
STARTED = "started"
"""File that is made once the first start has everything on disk.

A directory with it and without a log has lost its log.
"""
LOG_DIRECTORIES = ("raft", "commitlog", "index", "snapshots")
"""Directories in the order in which they are set aside.

`raft` goes first. After a crash in between, a durable mark and hard state without their log would be trusted.
"""
DATA_DIRECTORIES = ("commitlog", "index", "snapshots")
ACCEPTED_TERMS = 1 << 20
"""Number of terms that a replica skips if it no longer knows in which terms it voted.

It is larger than any number of elections that fail one after another.
"""

ACCEPT_LOSS = (
    "To continue with the log that this node still has, stop it and run 'dledger node recover --accept-loss' for it;"
    " the entries that it acknowledged last may be missing then"
)
_COPY_UNDAMAGED_NODE = (
    "stop another node of the group whose files are undamaged, and copy its commitlog, index, snapshots and raft/mark"
    " over this node's"
)
_LOSS_NOTE = "entries that only this node had are lost then"
RESTORE_IDENTITY = (
    "Put back identity.json or identity.copy.json; cluster.json beside the node's directory, or the status of another"
    " node, names the incarnation"
)
RESTORE_SNAPSHOT = f"Put back a copy of that file; or {_COPY_UNDAMAGED_NODE}: {_LOSS_NOTE}"
RESTORE_LOG = f"Put back copies of the files that are lost; or {_COPY_UNDAMAGED_NODE}: {_LOSS_NOTE}"
RESTORE_LOG_AND_MARK = (
    f"Put back commitlog, index, snapshots and raft/mark, all from one time; or {_COPY_UNDAMAGED_NODE}: {_LOSS_NOTE}."
    " To continue with the log that this node still has, stop it, delete its raft/mark and run 'dledger node recover"
    " --accept-loss' for it; the entries that it acknowledged last may be missing then"
)
REPLACE_LOG = (
    f"This node's log may be incomplete: {_COPY_UNDAMAGED_NODE}, and delete this node's {RESET_PATH}; {_LOSS_NOTE}"
)


@dataclass(slots=True)
class Opened:
    """A recovered node directory."""

    identity: Identity
    store: LogStore
    snapshots: SnapshotStore
    hard_state_file: HardStateFile
    hard_state: HardState
    recovery: Recovery
    base_term: int
    commit_index: int
    may_vote: bool
    boot_file: BootFile
    """File in which this start is recorded once the replica may vote, unless it is recorded already."""
    notes: list[str]
    identity_files: IdentityFiles

    def make_engine(self, kind: EngineKind, config: ReplicaConfig, environment: Environment) -> Engine:
        """Return an engine that continues from the recovered state."""
        recovery = self.recovery
        base = recovery.base
        log = KnownLog(
            recovery.first_index - 1,
            self.base_term,
            recovery.term_runs,
            recovery.last_index,
            base.membership if base is not None else self.identity.initial or Membership(),
            base.membership_index if base is not None else -1,
            recovery.memberships,
            recovery.unread,
        )
        return kind.start(
            EngineStart(
                ReplicaId(config.node_id, self.identity.incarnation),
                log,
                self.hard_state,
                recovery.durable_index,
                self.commit_index,
                config.raft,
                environment.random(),
                environment.now(),
                self.may_vote,
            )
        )


def founder_identity(config: ReplicaConfig, incarnation: str, engine: str) -> Identity:
    """Return the identity of a new group's only member."""
    me = ReplicaId(config.node_id, incarnation)
    return Identity(
        IDENTITY_FORMAT,
        config.cluster,
        config.group,
        config.node_id,
        incarnation,
        config.segment_bytes,
        Membership((me,)),
        engine,
        str(GroupIdentity.founded_by(incarnation)),
    )


def joiner_identity(config: ReplicaConfig, incarnation: str, engine: str) -> Identity:
    """Return the identity of a node that a leader is to add."""
    founder = founder_identity(config, incarnation, engine)
    return msgspec.structs.replace(founder, initial=None, group_id="")


def is_empty(disk: Disk) -> bool:
    """Return whether a directory belongs to nobody yet: it holds neither an identity nor any part of a log."""
    try:
        identity = read_identity(disk)
    except IdentityError:
        return False
    return identity is None and not any(disk.exists(path) for path in (STARTED, *LOG_DIRECTORIES))


def open_directory(
    disk: Disk,
    config: ReplicaConfig,
    mint: Callable[[], str],
    *,
    boot_id: str = "",
    bootstrap: bool = False,
    name: str = "the directory",
    engine: str = NATIVE_ENGINE,
) -> Opened:
    """Open or make a node directory.

    `mint` returns a fresh incarnation; `boot_id` names this run of the host. `bootstrap` founds a one-voter group if
    there is no identity yet. With `config.fetch_pause_ms`, an earlier part of the log that a former run fetched is
    joined to the log.

    Raises `IdentityError` if the directory belongs to another node, or to a node with another engine or segment size.
    Raises `LostDirectoryError` if its log, its votes or its identity cannot be read (see `set_aside`). Raises
    `CorruptionError` or `StorageError` if it cannot be used.
    """
    identity = _own_identity(disk, config, mint, bootstrap=bootstrap, name=name, engine=engine)
    notes = _scrub_identity(disk, identity)
    hard_state_file, hard_state = HardStateFile.open(disk)
    try:
        fresh = _is_fresh(disk, hard_state)
        if fresh and hard_state is None:
            hard_state = HardState()
            hard_state_file.save(hard_state)
        # Check before the log is opened, because opening makes a durable mark. A start that is cut short must find it
        # missing again.
        _require_promises(disk, hard_state, fresh=fresh, name=name)
        if config.fetch_pause_ms is not None:
            notes += _join_earlier(disk, config, identity.incarnation)
        snapshots, store, recovery, base_term = _open_log(disk, config, name)
        if hard_state is None:
            # The replica may have voted in a term that no entry shows. Skip more terms than elections ever use.
            hard_state = HardState(recovery.last_term + ACCEPTED_TERMS)
            hard_state_file.save(hard_state)
    except BaseException as error:
        hard_state_file.close()
        if config.flush == "async" and _is_disk_error(error):
            distrust_boot(disk)  # Recovery may have failed to sync what an earlier process left in the page cache.
        raise
    if fresh:
        disk.open(STARTED, create=True).close()
        disk.sync_dir(".")
    boot = BootRecord(boot_id, config.flush)
    may_vote, recorded = note_boot(disk, boot, clean=recovery.clean or fresh)
    boot_file = BootFile(disk, boot, recorded=recorded)
    store.on_failed_sync = boot_file.distrust
    if not may_vote:
        notes.append(
            "with flush = async the host went down without a clean stop, or a sync failed: acknowledged messages may be"
            " missing here, so this node does not vote until a leader has brought it up to date; if no leader can be"
            " elected because all nodes went down, accept the loss with 'dledger node recover --accept-loss'"
        )
    if bootstrap and identity.initial is None and recovery.durable_index < 0:
        notes.append(
            "bootstrap founds nothing in a directory that a start without it has made: this node waits until its group"
            " adds it; if there is no such group yet, empty the directory and start again"
        )
    known_commit = recovery.base.last_index if recovery.base is not None else -1
    commit_index = min(max(known_commit, recovery.saved_commit), recovery.durable_index)
    return Opened(
        identity,
        store,
        snapshots,
        hard_state_file,
        hard_state,
        recovery,
        base_term,
        commit_index,
        may_vote,
        boot_file,
        notes,
        IdentityFiles(disk, identity),
    )


def _is_disk_error(error: BaseException) -> bool:
    """Return whether a disk failed, rather than lacked space or descriptors."""
    cause = error.__cause__
    return isinstance(error, StorageError) and isinstance(cause, OSError) and cause.errno not in LACKING


def _join_earlier(disk: Disk, config: ReplicaConfig, incarnation: str) -> list[str]:
    """Join a fetched earlier part to the log. A disk error here does not end the start."""
    try:
        note = join_earlier(disk, incarnation, config.derived)
    except OSError as error:
        note = f"an earlier part of the log was fetched, and cannot be joined to it now: {error}"
    return [] if note is None else [note]


def _own_identity(
    disk: Disk, config: ReplicaConfig, mint: Callable[[], str], *, bootstrap: bool, name: str, engine: str
) -> Identity:
    """Return the identity of the directory. An empty directory becomes this node's."""
    try:
        identity = read_identity(disk, name)
    except UnreadableIdentityError as error:
        raise LostDirectoryError(str(error), RESTORE_IDENTITY) from error
    if identity is None:
        if any(disk.exists(path) for path in (STARTED, *LOG_DIRECTORIES)):
            raise LostDirectoryError(f"{name} holds a log, and its identity.json is missing", RESTORE_IDENTITY)
        identity = (founder_identity if bootstrap else joiner_identity)(config, mint(), engine)
        write_identity(disk, identity)
    check_identity(identity, cluster=config.cluster, group=config.group, node_id=config.node_id, directory=name)
    if identity.engine != engine:
        raise IdentityError(
            f"{name} belongs to a node with engine {identity.engine!r}, this node runs engine {engine!r}: all nodes of"
            f" a group have the same; start it with {identity.engine!r}, or convert all of them while they are stopped"
            " (nothing was changed)"
        )
    if identity.segment_bytes != config.segment_bytes:
        raise IdentityError(
            f"{name} was made with segment_bytes {identity.segment_bytes}, the configuration says"
            f" {config.segment_bytes}: the size belongs to the group and cannot change; configure"
            f" {identity.segment_bytes} again"
        )
    return identity


def _scrub_identity(disk: Disk, identity: Identity) -> list[str]:
    try:
        rewritten = scrub_identity(disk, identity)
    except OSError as error:
        if error.errno not in LACKING:
            raise
        return []
    if not disk.exists(STARTED):
        return []  # the first start was cut short
    return [f"{path} was written anew: it had rotted, or an older version wrote it" for path in rewritten]


def _require_promises(disk: Disk, hard_state: HardState | None, *, fresh: bool, name: str) -> None:
    """Raise `LostDirectoryError` if it is not known what this replica acknowledged or voted.

    An operator may accept that loss only while there is a log. Two voters without a log could elect one of them.
    """
    if fresh or (is_loss_accepted(disk) and list_positions(disk, SEGMENTS)):
        return
    if hard_state is None:
        raise LostDirectoryError(f"{name}: no copy of term and vote in {HARD_STATE_PATH} is valid", ACCEPT_LOSS)
    if DurableMark.read(disk) is None:
        raise LostDirectoryError(f"{name}: no copy of the durable mark in {MARK_PATH} is valid", ACCEPT_LOSS)


def _open_log(disk: Disk, config: ReplicaConfig, name: str) -> tuple[SnapshotStore, LogStore, Recovery, int]:
    """Open and recover the log. Returns its stores and the term of the entry before its first entry."""
    snapshots = SnapshotStore.open(disk)
    try:
        store, recovery = LogStore.open(
            disk,
            segment_bytes=config.segment_bytes,
            snapshots=snapshots,
            reserve_bytes=config.reserve_bytes,
            max_open_segments=config.max_open_segments,
        )
    except CorruptionError as error:
        raise LostDirectoryError(f"{name}: {error}", _remedy(error)) from error
    base_term = _base_term(snapshots, recovery)
    if base_term is None:
        store.close(clean=False)
        problems = "; ".join((*snapshots.report.invalid, *recovery.notes)) or "there is no such file"
        raise LostDirectoryError(
            f"{name}: the log begins at {recovery.first_position}, and the snapshot of that position is lost"
            f" ({problems})",
            RESTORE_SNAPSHOT,
        )
    return snapshots, store, recovery, base_term


def _base_term(snapshots: SnapshotStore, recovery: Recovery) -> int | None:
    """Return the term of the entry before the first entry; None if no snapshot says what was before the log.

    If the snapshot at the beginning has rotted, a later snapshot has the state. Snapshots are at marks. The first entry
    of a term is a no-op and never has a mark. So the entry before the mark is of the same term.
    """
    if recovery.first_index == 0:
        return 0
    base = snapshots.at_or_below(recovery.first_position)
    if base is not None and base.position == recovery.first_position:
        return base.last_term
    if recovery.base is not None and recovery.first_position in snapshots.rotten:
        return recovery.term_runs[0][1]
    return None


def _remedy(error: CorruptionError) -> str:
    """Return what an operator can do about a log that cannot be recovered."""
    match error:
        case MarkContradictedError():
            return RESTORE_LOG_AND_MARK
        case UnreadableResetError():
            return REPLACE_LOG
        case _:
            return RESTORE_LOG


def _is_fresh(disk: Disk, hard_state: HardState | None) -> bool:
    """Return whether nothing was promised from this directory yet, because no first start has completed.

    A first start that is cut short, by a port in use or a kill, must not cost the node its incarnation. Otherwise a
    founder would no longer be one of the voters. A start writes the empty hard state first. So a fresh directory holds
    either that, or nothing of a log.
    """
    if disk.exists(STARTED):
        return False
    if hard_state is None:
        return not any(disk.exists(directory) for directory in DATA_DIRECTORIES)
    return hard_state == HardState()


def set_aside(disk: Disk, identity: Identity, mint: Callable[[], str]) -> Identity:
    """Become another incarnation, and move the log, the mark and the hard state to `aside-<n>/`.

    No file of the directory may be open.
    """
    fresh = msgspec.structs.replace(identity, incarnation=mint(), initial=None, group_id=identity.group_id or "")
    write_identity(disk, fresh)
    number = 0
    while disk.exists(f"aside-{number}"):
        number += 1
    disk.mkdir(f"aside-{number}")
    for directory in LOG_DIRECTORIES:
        if disk.exists(directory):
            disk.rename(directory, f"aside-{number}/{directory}")
    disk.unlink(STARTED)
    disk.sync_dir(".")
    return fresh


def lost_directory_identity(
    disk: Disk, config: ReplicaConfig, mint: Callable[[], str], engine: str = NATIVE_ENGINE
) -> Identity:
    """Return the identity of a directory that lost something. If the identity itself is lost, return a new one."""
    try:
        identity = read_identity(disk)
    except IdentityError:
        identity = None
    return identity or joiner_identity(config, mint(), engine)
