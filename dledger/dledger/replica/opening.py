"""Opens a node directory: recovers what is there, and refuses what must not be trusted.

A directory that lost its identity, its durable mark, its hard state, or the snapshot that its log begins behind, is not
the member it was: what it acknowledged or voted may be gone.  While a leader that lists the node answers
(`dledger.replica.returning`), its log is set aside under `aside-<n>/` and it comes back as another incarnation, which
the leader takes in as a learner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine, EngineKind, EngineStart, KnownLog
from dledger.environment import Environment
from dledger.errors import (
    CorruptionError,
    IdentityError,
    LostDirectoryError,
    MarkContradictedError,
    UnreadableIdentityError,
    UnreadableResetError,
)
from dledger.replica.boot import BootFile, BootRecord, is_loss_accepted, note_boot
from dledger.store.disk import FULL, Disk
from dledger.store.hardstate import PATH as HARD_STATE_PATH
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import Identity, check_identity, read_identity, scrub_identity, write_identity
from dledger.store.log import LogStore
from dledger.store.mark import PATH as MARK_PATH
from dledger.store.mark import DurableMark
from dledger.store.recovered import Recovery
from dledger.store.reset import PATH as RESET_PATH
from dledger.store.segments import DIRECTORY as SEGMENTS
from dledger.store.segments import list_positions
from dledger.store.snapshots import SnapshotStore
from dledger.types import NATIVE_ENGINE, HardState, Membership, ReplicaId

IDENTITY_FORMAT = 1
STARTED = "started"
"""Made once the first start has everything on disk: with it an empty directory is one that lost its log."""
LOG_DIRECTORIES = ("raft", "commitlog", "index", "snapshots")
"""In the order in which they are set aside: a mark or a hard state without its log would be believed."""
DATA_DIRECTORIES = ("commitlog", "index", "snapshots")
ACCEPTED_TERMS = 1 << 20
"""How many terms a replica leaves out that does not know any more in which it voted: more than elections ever fail."""

ACCEPT_LOSS = (
    "To go on with the log that is there, stop this node and run 'dledger node recover --accept-loss' for it;"
    " what it acknowledged last may be missing then"
)
_COPY_A_WHOLE_NODE = (
    "stop another node of the group that is whole, and copy its commitlog, index, snapshots and raft/mark over this"
    " node's"
)
_LOST_THEN = "what only this node had is lost then"
RESTORE_IDENTITY = (
    "Put back identity.json or identity.copy.json; cluster.json beside the node's directory, or the status of another"
    " node, names the incarnation"
)
RESTORE_SNAPSHOT = f"Put back a copy of that file; or {_COPY_A_WHOLE_NODE}: {_LOST_THEN}"
RESTORE_LOG = f"Put back copies of the files that are lost; or {_COPY_A_WHOLE_NODE}: {_LOST_THEN}"
RESTORE_LOG_AND_MARK = (
    f"Put back commitlog, index, snapshots and raft/mark as they were together; or {_COPY_A_WHOLE_NODE}: {_LOST_THEN}."
    " To go on with the log that is there, stop this node, delete its raft/mark and run 'dledger node recover"
    " --accept-loss' for it; what it acknowledged last may be missing then"
)
REPLACE_LOG = (
    f"What is left of this node's log may be half of it: {_COPY_A_WHOLE_NODE}, and delete this node's {RESET_PATH};"
    f" {_LOST_THEN}"
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
    """Records this start, if it is not recorded yet, once this replica may vote."""
    notes: list[str]
    scrub_identity: Callable[[], Sequence[str]] = tuple
    """Writes the copies of the identity anew that have rotted; returns their paths.  Raises `OSError`."""

    def make_engine(self, kind: EngineKind, config: ReplicaConfig, environment: Environment) -> Engine:
        """The engine that goes on from here."""
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


def found_group(config: ReplicaConfig, incarnation: str, engine: str) -> Identity:
    """The identity of a group's only member so far."""
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
    )


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
    """Open or make a node directory; `mint` gives a fresh incarnation, `boot_id` names this run of the host.

    `bootstrap` founds a one-voter group if there is no identity yet.  Raises `IdentityError` if the directory belongs
    to someone else, or to a node with another engine, `LostDirectoryError` if what was promised from it cannot be read
    (see `set_aside`), `CorruptionError` or `StorageError` if it cannot be used.
    """
    identity = _own_identity(disk, config, mint, bootstrap=bootstrap, name=name, engine=engine)
    notes = _scrub_identity(disk, identity)
    hard_state_file, hard_state = HardStateFile.open(disk)
    try:
        fresh = _is_fresh(disk, hard_state)
        if fresh and hard_state is None:
            hard_state = HardState()
            hard_state_file.save(hard_state)
        # Before the log is opened, for that makes a mark: a start that is cut short must find it missing again.
        _require_promises(disk, hard_state, fresh=fresh, name=name)
        snapshots, store, recovery, base_term = _open_log(disk, config, name)
        if hard_state is None:
            # It may have voted in a term that no entry tells: no election counts that far.
            hard_state = HardState(recovery.last_term + ACCEPTED_TERMS)
            hard_state_file.save(hard_state)
    except BaseException:
        hard_state_file.close()
        raise
    if fresh:
        disk.open(STARTED, create=True).close()
        disk.sync_dir(".")
    boot = BootRecord(boot_id, config.flush)
    may_vote, recorded = note_boot(disk, boot, clean=recovery.clean or fresh)
    if not may_vote:
        notes.append(
            "with flush = async the host went down without a clean stop: acknowledged messages may be missing here, so"
            " this node does not vote until a leader has brought it up to date; if no leader can be elected because"
            " all nodes went down, accept the loss with 'dledger node recover --accept-loss'"
        )
    if bootstrap and identity.initial is None and recovery.durable_index < 0:
        notes.append(
            "bootstrap founds nothing in a directory that a start without it has made: this node waits for its group to"
            " take it in; if there is no such group yet, empty the directory and start again"
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
        BootFile(disk, boot, recorded=recorded),
        notes,
        partial(scrub_identity, disk, identity),
    )


def _own_identity(
    disk: Disk, config: ReplicaConfig, mint: Callable[[], str], *, bootstrap: bool, name: str, engine: str
) -> Identity:
    """Whose directory this is; an empty one becomes this node's."""
    try:
        identity = read_identity(disk, name)
    except UnreadableIdentityError as error:
        raise LostDirectoryError(str(error), RESTORE_IDENTITY) from error
    if identity is None:
        if any(disk.exists(path) for path in (STARTED, *LOG_DIRECTORIES)):
            raise LostDirectoryError(f"{name} holds a log, and its identity.json is missing", RESTORE_IDENTITY)
        identity = found_group(config, mint(), engine)
        if not bootstrap:
            identity = _joiner(identity)
        write_identity(disk, identity)
    check_identity(identity, cluster=config.cluster, group=config.group, node_id=config.node_id, directory=name)
    if identity.engine != engine:
        raise IdentityError(
            f"{name} is that of a node with engine {identity.engine!r}, this node runs engine {engine!r}: all nodes of"
            " a group have the same; start it with the first, or convert all of them while they are stopped"
            " (nothing was changed)"
        )
    if identity.segment_bytes != config.segment_bytes:
        raise IdentityError(
            f"{name} was made with segment_bytes {identity.segment_bytes}, the configuration says"
            f" {config.segment_bytes}: the size belongs to the group and cannot change; put the first back"
        )
    return identity


def _scrub_identity(disk: Disk, identity: Identity) -> list[str]:
    try:
        rewritten = scrub_identity(disk, identity)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return []
    if not disk.exists(STARTED):
        return []  # its first start was cut short
    return [f"{path} was written anew: it had rotted, or an older version wrote it" for path in rewritten]


def _require_promises(disk: Disk, hard_state: HardState | None, *, fresh: bool, name: str) -> None:
    """Raise `LostDirectoryError` if it is not known what this replica acknowledged or voted.

    An operator may accept that, as long as there is a log: a voter without one would help to elect another such.
    """
    if fresh or (is_loss_accepted(disk) and list_positions(disk, SEGMENTS)):
        return
    if hard_state is None:
        raise LostDirectoryError(f"{name}: no copy of term and vote in {HARD_STATE_PATH} is valid", ACCEPT_LOSS)
    if DurableMark.read(disk) is None:
        raise LostDirectoryError(f"{name}: no copy of the durable mark in {MARK_PATH} is valid", ACCEPT_LOSS)


def _open_log(disk: Disk, config: ReplicaConfig, name: str) -> tuple[SnapshotStore, LogStore, Recovery, int]:
    """The recovered log, with the term of the entry before its first one."""
    snapshots = SnapshotStore.open(disk)
    try:
        store, recovery = LogStore.open(
            disk, segment_bytes=config.segment_bytes, snapshots=snapshots, reserve_bytes=config.reserve_bytes
        )
    except CorruptionError as error:
        raise LostDirectoryError(f"{name}: {error}", _remedy(error)) from error
    if recovery.first_index == 0:
        return snapshots, store, recovery, 0
    first = snapshots.at_or_below(recovery.first_position)
    if first is None or first.position != recovery.first_position:
        store.close(clean=False)
        found = "; ".join((*snapshots.report.invalid, *recovery.notes)) or "there is no such file"
        raise LostDirectoryError(
            f"{name}: the log begins at {recovery.first_position}, and the snapshot of that position is lost ({found})",
            RESTORE_SNAPSHOT,
        )
    return snapshots, store, recovery, first.last_term


def _remedy(error: CorruptionError) -> str:
    """What an operator can do about a log that cannot be recovered."""
    match error:
        case MarkContradictedError():
            return RESTORE_LOG_AND_MARK
        case UnreadableResetError():
            return REPLACE_LOG
        case _:
            return RESTORE_LOG


def _is_fresh(disk: Disk, hard_state: HardState | None) -> bool:
    """Whether nothing was promised from this directory yet: no first start has come to its end.

    One that was cut short, by a port in use or a kill, must not cost the node its incarnation: a founder would not be
    one of the voters any more.  The first thing a start writes is the empty hard state, so either that is found, or
    nothing of a log.
    """
    if disk.exists(STARTED):
        return False
    if hard_state is None:
        return not any(disk.exists(directory) for directory in DATA_DIRECTORIES)
    return hard_state == HardState()


def set_aside(disk: Disk, identity: Identity, mint: Callable[[], str]) -> Identity:
    """Move everything that was promised out of the way and become another incarnation.  Nothing may be open."""
    fresh = _joiner(identity, mint())
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


def identity_to_leave(
    disk: Disk, config: ReplicaConfig, mint: Callable[[], str], engine: str = NATIVE_ENGINE
) -> Identity:
    """The identity of a directory that lost something, made up as far as that itself is lost."""
    try:
        identity = read_identity(disk)
    except IdentityError:
        identity = None
    return identity or _joiner(found_group(config, mint(), engine))


def _joiner(identity: Identity, incarnation: str | None = None) -> Identity:
    return Identity(
        identity.format,
        identity.cluster,
        identity.group,
        identity.node_id,
        incarnation or identity.incarnation,
        identity.segment_bytes,
        None,
        identity.engine,
    )
