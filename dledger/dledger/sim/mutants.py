"""Known bugs, to be switched on one by one: a simulator that does not catch them proves nothing.

Each replaces one or two small functions of the real code, and puts them back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from dledger.config import ReplicaConfig
from dledger.core.effects import Commit, ReadsReady, SaveHardState
from dledger.core.messages import Append, AppendReply, VoteReply, VoteRequest
from dledger.core.raft import Entries, Raft
from dledger.replica.leading import Leading
from dledger.replica.opening import LOG_DIRECTORIES, STARTED, Opened, open_directory
from dledger.replica.proposer import SealedEntry
from dledger.replica.reads import ReadWaiters
from dledger.sim import group
from dledger.sim.machine import Pending
from dledger.store.disk import Disk
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.recovery import _Recoverer
from dledger.store.slots import SlotFile
from dledger.store.sync import SyncTicket
from dledger.types import EntryMeta, HardState, ReplicaId

Patch = tuple[type | ModuleType, str, object]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: the promise it breaks, and what it replaces by what."""

    name: str
    breaks: str
    patches: tuple[Patch, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The bug is in the code inside this context."""
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches]
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, breaks: str, *patches: Patch) -> None:
    MUTANTS[name] = Mutant(name, breaks, patches)


# ---------------------------------------------------------------- commit rules


def _commit(self: Raft, index: int, now: float, *, any_term: bool = False) -> None:
    if index <= self.commit_index or not (any_term or self.table.term_at(index) == self.term):
        return
    self.commit_index = index
    self._effects.append(Commit(index))
    if self.table.membership_index <= index and not self.is_voter:
        self._heartbeat(now)
        self._become_follower(self.term, None, now)


def _quorum_index(self: Raft, members: tuple[ReplicaId, ...], own: int) -> int:
    held = sorted(own if member == self.me else self.progress[member].match_index for member in members)
    return held[-self.table.membership.quorum]


def _commit_what_one_has(self: Raft, now: float) -> None:
    _commit(self, self.durable_index, now)


_mutant(
    "commit-without-quorum",
    "an entry is committed once a majority has it",
    (Raft, "_advance_commit", _commit_what_one_has),
)


def _commit_counting_members(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.members, self.durable_index), now)


_mutant("learners-count", "learners count for nothing", (Raft, "_advance_commit", _commit_counting_members))


def _commit_of_any_term(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.voters, self.durable_index), now, any_term=True)


_mutant(
    "commit-older-term",
    "only entries of the own term are committed by counting (figure 8)",
    (Raft, "_advance_commit", _commit_of_any_term),
)


def _commit_counting_unsynced(self: Raft, now: float) -> None:
    _commit(self, _quorum_index(self, self.table.membership.voters, self.table.last_index), now)


_mutant(
    "leader-counts-unsynced",
    "a leader counts itself only up to its own durable index",
    (Raft, "_advance_commit", _commit_counting_unsynced),
)


def _follow_commit_to_the_end(self: Raft, leader_commit: int) -> None:
    commit = min(leader_commit, self.table.last_index)
    if commit > self.commit_index:
        self.commit_index = commit
        self._effects.append(Commit(commit))


_mutant(
    "follower-commits-last-index",
    "a follower commits only what this term's leader has verified, for heartbeats overtake appends",
    (Raft, "_learn_commit", _follow_commit_to_the_end),
)

# ---------------------------------------------------------------- acknowledgements

_mutant(
    "ack-before-sync",
    "an acknowledgement names what is durable",
    (Raft, "_match_index", property(lambda self: self.verified_index)),
)


def _keep_verified(self: Raft, term: int, vote: ReplicaId | None) -> None:
    if (term, vote) != (self.term, self.vote):
        self.term, self.vote = term, vote
        self._unsaved = True
        self._effects.append(SaveHardState(HardState(term, vote)))


_mutant(
    "stale-acknowledgement",
    "what an older leader verified is not acknowledged to the next one",
    (Raft, "_set_hard_state", _keep_verified),
)


def _ignore_generation(self: Raft, generation: int, index: int, now: float) -> None:
    _ = generation
    index = min(index, self.table.last_index)
    if index <= self.durable_index:
        return
    self.durable_index = index
    if self.is_leader:
        self._advance_commit(now)
    elif self.leader is not None:
        self._send(self.leader, self._reply())


_mutant(
    "sync-generation-ignored",
    "a sync vouches only for the generation of the log in which it began",
    (Raft, "synced", _ignore_generation),
)

# ---------------------------------------------------------------- logs


def _truncate_what_matches(self: Raft, sender: ReplicaId, message: Append, metas: Entries, data: bytes) -> None:
    known = self.table.term_at(message.prev_index)
    if message.prev_index > self.commit_index and known != message.prev_term:
        hint = self.table.last_at_or_below_term(message.prev_index, message.prev_term)
        self._send(sender, self._reply(message.prev_index, hint, self.table.term_at(hint) or 0))
        return
    fresh = [meta for meta in metas if meta.index > self.commit_index]
    if fresh:
        if fresh[0].index <= self.table.last_index:
            self._truncate(fresh[0].index)
        self._append(fresh, memoryview(data)[fresh[0].position - metas[0].position :])
    self.verified_index = max(self.verified_index, message.prev_index + len(metas))
    self._learn_commit(message.commit_index)
    self._send(sender, self._reply())


_mutant(
    "truncate-matching",
    "entries that equal the leader's are never truncated",
    (Raft, "_on_append", _truncate_what_matches),
)


def _never_below_the_base(self: Raft, reply: AppendReply) -> int:
    return max(self.table.last_at_or_below_term(reply.hint_index, reply.hint_term), self.table.base_index) + 1


_mutant(
    "conflict-at-base",
    "a conflict at the compacted base is mended by a snapshot",
    (Raft, "_next_after_conflict", _never_below_the_base),
)

# ---------------------------------------------------------------- votes


def _send_before_save(self: Raft, term: int, vote: ReplicaId | None) -> None:
    if (term, vote) != (self.term, self.vote):
        if term != self.term:
            self.verified_index = self.commit_index
        self.term, self.vote = term, vote
        self._effects.append(SaveHardState(HardState(term, vote)))


def _saved(self: Raft, state: HardState, now: float) -> None:
    if state == (self.term, self.vote) and self.vote == self.me and self.role.name == "CANDIDATE":
        self._count_vote(self.me, now)


_mutant(
    "message-before-save",
    "no message leaves before the term and vote it reflects are durable",
    (Raft, "_set_hard_state", _send_before_save),
    (Raft, "hard_state_saved", _saved),
)


def _save_without_sync(self: HardStateFile, state: HardState) -> None:
    synced = SlotFile.sync
    setattr(SlotFile, "sync", lambda _slots: None)  # noqa: B010 - a method is replaced for a moment
    try:
        _real_save(self, state)
    finally:
        setattr(SlotFile, "sync", synced)  # noqa: B010 - and put back


_real_save = HardStateFile.save

_mutant("vote-not-synced", "a vote survives a power loss", (HardStateFile, "save", _save_without_sync))


def _vote_again(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    if not request.pre and request.term == self.term and self.vote not in (None, sender) and not self.is_leader:
        complete = (request.last_term, request.last_index) >= (self.table.last_term, self.table.last_index)
        if complete:
            self._set_hard_state(self.term, sender)
            self._send(sender, VoteReply(self.term, granted=True))
            return
    _real_on_vote_request(self, sender, request, now)


_real_on_vote_request = Raft._on_vote_request  # noqa: SLF001 - what is patched is what is private

_mutant("vote-twice", "nobody votes twice in a term", (Raft, "_on_vote_request", _vote_again))


def _forget_the_vote(disk: Disk) -> tuple[HardStateFile, HardState | None]:
    file, state = _real_open(disk)
    return file, None if state is None else HardState(state.term, None)


_real_open = HardStateFile.open

_mutant(
    "vote-forgotten",
    "a restart remembers the vote",
    (HardStateFile, "open", staticmethod(_forget_the_vote)),
)


def _vote_for_anyone(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    generous = VoteRequest(request.term, 1 << 60, 1 << 60, request.pre, request.transfer)
    _real_on_vote_request(self, sender, generous, now)


_mutant(
    "vote-for-short-log",
    "a vote goes only to a candidate whose log is at least as complete",
    (Raft, "_on_vote_request", _vote_for_anyone),
)


def _vote_if_member(self: Raft, sender: ReplicaId, request: VoteRequest, now: float) -> None:
    if self.me in self.table.membership.members:
        _real_on_vote_request(self, sender, request, now)


_mutant(
    "member-only-votes",
    "a replica whose last entries may be void votes whether or not they list it",
    (Raft, "_on_vote_request", _vote_if_member),
)

# ---------------------------------------------------------------- reads, membership, answers


def _read_at_once(self: Raft, now: float) -> int | None:
    _ = now
    if not self.own_term_committed:
        return None
    self._round += 1
    self._effects.append(ReadsReady(self._round, self.commit_index))
    return self._round


_mutant(
    "read-without-round",
    "a read waits for a majority to confirm the leader",
    (Raft, "read_index", _read_at_once),
)


def _serve_when_confirmed(self: ReadWaiters, number: int, index: int) -> None:
    _ = index
    _real_confirmed(self, number, -1)


_real_confirmed = ReadWaiters.confirmed

_mutant(
    "read-before-apply",
    "a read waits until what was committed before it is applied",
    (ReadWaiters, "confirmed", _serve_when_confirmed),
)

_mutant(
    "membership-before-own-commit",
    "a membership change waits for an own-term commit",
    (Raft, "can_change_membership", property(lambda self: self.is_leader)),
    (Raft, "own_term_committed", property(lambda self: self.is_leader)),
)


def _answer_when_proposed(self: Leading, entry: SealedEntry) -> None:
    _real_propose(self, entry)
    for context in entry.contexts:
        if isinstance(context, Pending):
            context.resolve("ok", context.position)


_real_propose = Leading._propose  # noqa: SLF001 - what is patched is what is private

_mutant(
    "answer-before-apply",
    "an append is answered once it is applied",
    (Leading, "_propose", _answer_when_proposed),
)

# ---------------------------------------------------------------- store


def _rewrite_nothing(self: _Recoverer, position: int, end: int) -> None:
    _ = position, end, self


_mutant(
    "recovery-trusts-the-cache",
    "what a recovery reads it also writes and syncs, for the page cache may show what the disk does not hold",
    (_Recoverer, "rewrite", _rewrite_nothing),
)


def _lower_in_memory(self: DurableMark, ceiling: MarkValue) -> None:
    with self._lock:
        self._value = ceiling


_mutant(
    "mark-not-lowered",
    "the durable mark is lowered before a truncation",
    (DurableMark, "lower", _lower_in_memory),
)


def _mark_first(self: LogStore, *, whole_index: bool = False) -> SyncTicket | None:
    ticket = _real_begin_sync(self, whole_index=whole_index)
    if ticket is not None:
        self._mark.write(ticket.target)
        self._mark.sync()
    return ticket


_real_begin_sync = LogStore.begin_sync

_mutant("mark-before-sync", "the durable mark never exceeds what is durable", (LogStore, "begin_sync", _mark_first))


def _roll_without_directories(self: LogStore, first: EntryMeta) -> None:
    _real_roll(self, first)
    self._directories_dirty = False


_real_roll = LogStore._roll  # noqa: SLF001 - what is patched is what is private

_mutant(
    "directory-not-synced",
    "a sync that spans a roll covers the directory",
    (LogStore, "_roll", _roll_without_directories),
)


def _sync_last_segment(self: SyncTicket) -> None:
    last = self._segments[-1:]
    for segment in self._segments[:-1]:
        segment.release()
    self._segments = last
    _real_run(self)


_real_run = SyncTicket.run

_mutant(
    "old-segment-not-synced",
    "a sync that spans a roll covers the old segment",
    (SyncTicket, "run", _sync_last_segment),
)


def _forgive_lost_files(
    disk: Disk, config: ReplicaConfig, mint: Callable[[], str], *, bootstrap: bool = False, name: str = ""
) -> Opened:
    if not any(disk.exists(directory) for directory in LOG_DIRECTORIES):
        disk.unlink(STARTED)
    return open_directory(disk, config, mint, bootstrap=bootstrap, name=name)


_mutant(
    "lost-files-forgiven",
    "a directory that lost its log is another member",
    (group, "open_directory", _forgive_lost_files),
)

# ---------------------------------------------------------------- snapshots


def _never_again(self: Raft, to: ReplicaId, term: int, now: float) -> None:
    _ = self, to, term, now


_mutant(
    "snapshot-sent-once",
    "a follower that could not take a snapshot gets another one",
    (Raft, "snapshot_sent", _never_again),
)
