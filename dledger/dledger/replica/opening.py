"""Opens a node directory: recovers what is there, and refuses what must not be trusted.

A directory whose durable mark or hard state is lost is not the member it was: what it acknowledged or voted may be
gone.  Its log is set aside under `aside-<n>/` and it comes back as another incarnation, which the leader takes in as a
learner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dledger.config import ReplicaConfig
from dledger.core.log_table import LogTable
from dledger.engines import Engine, EngineFactory
from dledger.environment import Environment
from dledger.errors import IdentityError
from dledger.replica.boot import BootRecord, note_boot, record_boot
from dledger.store.disk import Disk
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import Identity, check_identity, read_identity, write_identity
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark
from dledger.store.recovery import Recovery
from dledger.store.snapshots import SnapshotStore
from dledger.types import HardState, Membership, ReplicaId

IDENTITY_FORMAT = 1
STARTED = "started"
"""Made once the first start has everything on disk: with it an empty directory is one that lost its log."""
LOG_DIRECTORIES = ("raft", "commitlog", "index", "snapshots")
"""In the order in which they are set aside: a mark or a hard state without its log would be believed."""
DATA_DIRECTORIES = ("commitlog", "index", "snapshots")


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
    record_start: Callable[[], None] | None
    """To be called once this replica may vote, or None.  Raises `OSError`."""
    notes: list[str]

    def make_engine(self, make: EngineFactory, config: ReplicaConfig, environment: Environment) -> Engine:
        """The engine that goes on from here."""
        recovery = self.recovery
        base = recovery.base
        table = LogTable(
            recovery.first_index - 1,
            self.base_term,
            recovery.term_runs,
            recovery.last_index,
            base.membership if base is not None else self.identity.initial,
            base.membership_index if base is not None else -1,
            recovery.memberships,
            recovery.unread,
        )
        return make(
            ReplicaId(config.node_id, self.identity.incarnation),
            table,
            self.hard_state,
            durable_index=recovery.durable_index,
            commit_index=self.commit_index,
            settings=config.raft,
            random=environment.random(),
            now=environment.now(),
            may_vote=self.may_vote,
        )


def found_group(config: ReplicaConfig, incarnation: str) -> Identity:
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
    )


def open_directory(
    disk: Disk,
    config: ReplicaConfig,
    mint: Callable[[], str],
    *,
    boot_id: str = "",
    bootstrap: bool = False,
    name: str = "the directory",
) -> Opened:
    """Open or make a node directory; `mint` gives a fresh incarnation, `boot_id` names this run of the host.

    `bootstrap` founds a one-voter group if there is no identity yet.  Raises `IdentityError` if the directory belongs
    to someone else, `CorruptionError` or `StorageError` if it cannot be used.
    """
    notes: list[str] = []
    identity = read_identity(disk, name)
    if identity is None:
        identity = found_group(config, mint())
        if not bootstrap:
            identity = _joiner(identity)
        write_identity(disk, identity)
    check_identity(identity, cluster=config.cluster, group=config.group, node_id=config.node_id, directory=name)
    if identity.segment_bytes != config.segment_bytes:
        raise IdentityError(
            f"{name} was made with segment_bytes {identity.segment_bytes}, the configuration says"
            f" {config.segment_bytes}: the size belongs to the group and cannot change; put the first back"
        )
    hard_state_file, hard_state = HardStateFile.open(disk)
    fresh = _is_fresh(disk, hard_state)
    if hard_state is None and fresh:
        hard_state = HardState()
        hard_state_file.save(hard_state)
    if hard_state is None:
        hard_state_file.close()
        notes.append("no valid copy of term and vote: rejoining as another incarnation")
        return _reopen_aside(disk, config, identity, mint, boot_id, name, notes)
    if not fresh and DurableMark.read(disk) is None:
        # Before the log is opened, for that makes a mark: a start that is cut short must find it missing again.
        hard_state_file.close()
        notes.append("no valid durable mark: rejoining as another incarnation")
        return _reopen_aside(disk, config, identity, mint, boot_id, name, notes)
    snapshots = SnapshotStore.open(disk)
    store, recovery = LogStore.open(
        disk, segment_bytes=config.segment_bytes, snapshots=snapshots, reserve_bytes=config.reserve_bytes
    )
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
    base_term = 0
    if recovery.first_index > 0:
        first = snapshots.at_or_below(recovery.first_position)
        if first is None or first.position != recovery.first_position:
            raise IdentityError(
                f"{name} has a log from position {recovery.first_position} on and no snapshot of that position:"
                " move the directory away; the node rejoins the group by itself"
            )
        base_term = first.last_term
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
        None if recorded else partial(record_boot, disk, boot),
        notes,
    )


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


def _joiner(identity: Identity, incarnation: str | None = None) -> Identity:
    return Identity(
        identity.format,
        identity.cluster,
        identity.group,
        identity.node_id,
        incarnation or identity.incarnation,
        identity.segment_bytes,
        None,
    )


def _reopen_aside(
    disk: Disk,
    config: ReplicaConfig,
    identity: Identity,
    mint: Callable[[], str],
    boot_id: str,
    name: str,
    notes: list[str],
) -> Opened:
    set_aside(disk, identity, mint)
    opened = open_directory(disk, config, mint, boot_id=boot_id, name=name)
    opened.notes[:0] = notes
    return opened
