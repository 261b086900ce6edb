"""Rescue of a group that lost its majority for good: one survivor becomes its only voter, while it is stopped.

Two entries are appended to the survivor's log, in a term of their own. One is a membership with the survivor alone, the
other a command that gives the group its next identity. From its next start on the survivor elects itself and commits
all that its log holds. Nodes of the previous incarnation show the earlier identity and are refused.

A cold copy becomes another group in the same way, with an identity and an incarnation of its own.

The steps are done in this order, so that a rescue that was cut short can be repeated: term and vote, log, identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dledger.config import ReplicaConfig
from dledger.errors import CorruptionError, IdentityError
from dledger.replica.start.boot import accept_loss
from dledger.replica.start.opening import open_directory
from dledger.replica.writing.proposer import Claim, Proposer, SealedEntry
from dledger.store.disk import Disk
from dledger.store.identity import Identity, read_identity, write_identity
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark
from dledger.store.scan import header_at
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId
from dledger_base.group_identity import GroupIdentity

Command = Callable[[str, bool], bytes]
"""Encodes the command that records a group identity. The flag is True if it is to replace another group's identity."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of a directory's log, by its headers. Positions are in bytes; an index is -1 where there is no entry."""

    identity: Identity
    membership: Membership
    last_index: int
    last_term: int
    end_position: int
    durable_index: int
    """Index up to which everything was acknowledged as durable."""

    @property
    def progress(self) -> tuple[int, int]:
        """Sort key of logs: the later last term is further, and with equal terms the longer log."""
        return self.last_term, self.last_index


def look(disk: Disk, name: str) -> LogEnd:
    """Read what a directory holds, and change nothing. Blocks; raises `IdentityError` if it holds no node's log.

    The headers end at a rotten one. If the durable mark is further, the log reaches at least up to the mark.
    """
    identity = read_identity(disk, name)
    starts = list_positions(disk, DIRECTORY)
    if identity is None or not starts:
        raise IdentityError(f"{name} holds no node's log: name the directory of a node, or a copy of one")
    base = SnapshotStore.open_readonly(disk).at_or_below(starts[-1])
    membership = base.membership if base is not None else identity.initial or Membership()
    last_entry: EntryMeta | None = None
    for start in starts:
        if base is None or start >= base.position:
            membership, last_entry = _walk_headers(disk, identity, start, membership, last_entry)
    if last_entry is not None:
        index, term, end = last_entry.index, last_entry.term, last_entry.end
    elif base is not None:
        index, term, end = base.last_index, base.last_term, starts[-1]
    else:
        index, term, end = -1, 0, starts[-1]
    mark = DurableMark.read(disk)
    if mark is not None and mark.index > index:
        index, term, end = mark.index, mark.term, mark.position
    return LogEnd(identity, membership, index, term, end, -1 if mark is None else mark.index)


def _walk_headers(
    disk: Disk, identity: Identity, start: int, membership: Membership, last_entry: EntryMeta | None
) -> tuple[Membership, EntryMeta | None]:
    """Walk the headers of one segment, and return the membership and the last entry after it."""
    file = disk.open(segment_path(start))
    try:
        position, end = start, start + identity.segment_bytes
        while position < end and (found := header_at(file, start, position)) is not None:
            if last_entry is not None and found.index != last_entry.index + 1:
                break  # a leftover of an earlier use of the file
            last_entry, position = found, found.end
            if found.membership is not None:
                membership = found.membership
    finally:
        file.close()
    return membership, last_entry


def rescue(
    disk: Disk, config: ReplicaConfig, command: Command, mint: Callable[[], str], *, boot_id: str, as_copy: bool
) -> str:
    """Make the node of a directory its group's only voter, and return the group's identity from now on.

    `as_copy` makes it another group. The caller must have locked the directory. Blocks.

    Raises `IdentityError` and `LostDirectoryError` as `open_directory`, `CorruptionError` if the log cannot be read up
    to its end, `StorageError`.
    """
    previous = read_identity(disk, config.data_dir)
    if previous is None:
        raise IdentityError(f"{config.data_dir} holds no node: there is no identity.json")
    identity = _next_identity(previous, mint, as_copy=as_copy)
    accept_loss(disk)  # the operator also accepts the loss of a term, a vote or a durable mark
    opened = open_directory(disk, config, mint, boot_id=boot_id, name=config.data_dir, engine=previous.engine)
    store, is_appended = opened.store, False
    try:
        recovery = opened.recovery
        if recovery.unread:
            raise CorruptionError(
                f"{config.data_dir}: entries from {recovery.unread[0][0]} on cannot be read, and may hold a newer"
                " membership: rescue another node, or save the messages with 'dledger log export'"
            )
        me = ReplicaId(config.node_id, identity.incarnation)
        term = max(opened.hard_state.term, recovery.last_term) + 1
        opened.hard_state_file.save(HardState(term, me))
        _append(store, term, Membership((me,)), command(identity.group_id or "", as_copy))
        is_appended = True
    finally:
        store.close(clean=is_appended)
        opened.hard_state_file.close()
    write_identity(disk, identity)
    return identity.group_id or ""


def _next_identity(previous: Identity, mint: Callable[[], str], *, as_copy: bool) -> Identity:
    if as_copy:
        incarnation = mint()
        return msgspec.structs.replace(
            previous,
            incarnation=incarnation,
            initial=None,
            group_id=str(GroupIdentity.founded_by(incarnation)),
        )
    known = (
        GroupIdentity.parse(previous.group_id) if previous.group_id else GroupIdentity.founded_by(previous.incarnation)
    )
    return msgspec.structs.replace(previous, group_id=str(known.rescued()))


def _append(store: LogStore, term: int, membership: Membership, command: bytes) -> None:
    """Append the two entries durably."""
    sealed: list[SealedEntry] = []

    def last_entry() -> tuple[int, int]:
        return (sealed[-1].meta.index, sealed[-1].meta.chain_crc) if sealed else (store.last_index, store.last_chain)

    def next_position(size: int, _claim: Claim) -> int:
        return store.next_position(size, sealed[-1].meta.end if sealed else None)

    proposer = Proposer(
        segment_bytes=store.segment_bytes,
        next_position=next_position,
        last_entry=last_entry,
        on_sealed=sealed.append,
        wants_mark=_wants_no_mark,
    )
    sealed.append(proposer.control_entry(EntryKind.MEMBERSHIP, term, membership))
    proposer.stage(term, 0, None, command, None, privileged=True)
    proposer.seal()
    for entry in sealed:
        store.reserve(store.need_for((entry.meta,), privileged=True))
        store.claim((entry.meta,), privileged=True)
        store.append((entry.meta,), entry.data)
    ticket = store.begin_sync(whole_index=True)
    if ticket is not None:
        ticket.run()
        store.finish_sync(ticket)
    store.sync_mark()
    store.save_commit(store.last_index)


def _wants_no_mark() -> bool:
    return False
