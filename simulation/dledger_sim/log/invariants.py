"""Invariants that hold after every event, checked incrementally for the node of the event.

The witness sees:

- the memory of all replicas
- the bytes that are really on all platters
- every message that leaves
- every operation of every client

The invariants:

1. Election safety: at most one leader per term.
2. Leader completeness: a new leader holds every entry committed in an earlier term.
3. Log matching and state machine safety: all replicas commit the same entry (term, position, chain crc) at an index.
  They have the same state after applying it.
4. Durability: when an entry is first committed, it lies, byte for byte, on the platters of a majority.
5. A commit index never goes back within one life. Only committed entries are applied.
6. An acknowledgement names entries that are on the sender's platter and equal to the leader's.
7. No message carries a term, and no vote leaves, unless it is on the sender's platter. No replica votes twice in a
  term.
8. An operation answered `ok` is applied at exactly the answered position. An operation answered `fail` never appears.
  No operation appears twice.
9. A committed entry, once written anywhere, is never truncated.
10. A read returns at least the writes that were acknowledged, or read, before it began.
11. A member still has everything that it acknowledged when it starts again.
12. A replica's readiness is what its role, its handover and its applied entries say.

`workload` checks the tenth. `platter`, `memberships`, `hearing`, `waiting` and `losses` check further invariants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from dledger.consensus.messages import Message
from dledger.core.messages import AppendReply, HeartbeatReply, InstallSnapshot, VoteReply, VoteRequest
from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta, ReplicaId, Role, SnapshotMeta
from dledger_base.loop_guard import excepted
from dledger_sim.log.hearing import PreVotes
from dledger_sim.log.life import Life
from dledger_sim.log.losses import Identity, Losses
from dledger_sim.log.memberships import CommittedMemberships
from dledger_sim.log.platter import durable_hard_state, durable_hard_states
from dledger_sim.log.violation import Violation, require

__all__ = ["Violation", "Witness", "require"]

Applied = Callable[[CommittedEntry, Sequence[tuple[int, int, int]], int], None]

_LEADER = Role.LEADER


def _find_entry(life: Life, index: int) -> EntryMeta | None:
    """Return a kept entry's metadata, or None if bit rot has made it unreadable."""
    try:
        with excepted("the judge is no part of the node"):
            return life.replica.store.meta(index)
    except CorruptionError:
        if not life.node.rotten:
            raise
        return None


class Witness:
    """Judge of the invariants. It raises `Violation` when one of them is broken."""

    def __init__(self) -> None:
        self.leaders: dict[int, ReplicaId] = {}
        self.votes: dict[tuple[int, ReplicaId], ReplicaId] = {}
        self.committed: list[Identity] = []
        self.committed_in: list[int] = []
        """Term of the leader that committed each entry."""
        self.states: dict[tuple[int, int, int], int] = {}
        """Digest of the state by index, term and position. Lost entries had states as well."""
        self.applied: dict[int, int] = {}
        """Position of every operation that any replica applied."""
        self.failed: set[int] = set()
        self.lives: dict[ReplicaId, Life] = {}
        self.forgetful: dict[ReplicaId, int] = {}
        """Position per member whose platter was wiped or damaged.

        The member counts as a holder of everything below it.
        """
        self._log_ends: dict[ReplicaId, int] = {}
        """End of the log of each member that does not run."""
        self.disks: dict[ReplicaId, SimDisk] = {}
        self.memberships = CommittedMemberships()
        self._pre_votes = PreVotes()
        self.sync = True
        """True if an acknowledgement waits for the platter.

        Otherwise it waits for the page cache only, and `losses` has the exceptions from the invariants.
        """
        self.losses = Losses()
        self._promised: dict[ReplicaId, Identity] = {}
        """Highest entry that a member acknowledged and must still have, as (index, position, chain crc)."""
        self.happened: Counter[str] = Counter()
        """Number of times that each rare event happened. A campaign is meant to reach them all."""

    # ---------------------------------------------------------------- lives

    def started(self, life: Life) -> None:
        """Check a node that has just started."""
        replica = life.replica
        self.lives[life.replica_id] = life
        self.disks[life.replica_id] = life.node.disk
        life.commit_seen = replica.engine.commit_index
        if life.commit_seen >= 0:
            self._check_commit(life, life.commit_seen)
        life.applied_seen = replica.applied_index
        life.first_seen, life.last_seen = replica.store.first_index, replica.store.last_index
        self._check_promise(life)
        self._check_doubt(life)

    def _check_promise(self, life: Life) -> None:
        """Check that a member still has what it acknowledged before it went down, unless a fault made it forget."""
        promised = self._promised.get(life.replica_id)
        store = life.replica.store
        if promised is None or self._is_excused(life.replica_id, promised[1]) or promised[0] < store.first_index:
            return
        meta = _find_entry(life, promised[0]) if promised[0] <= store.last_index else None
        require(
            promised[0] <= store.last_index and (meta is None or meta.chain_crc == promised[2]),
            "a member that starts again has the entries that it acknowledged",
            node=life.node.name,
            promised=promised,
            last=store.last_index,
        )

    def power_lost(self, name: str) -> None:
        """Note that a node's host goes down, which loses the page cache."""
        if not self.sync:
            for member in self.disks:
                if member.node_id == name:
                    promised = self._promised.pop(member, None)
                    self.losses.power_lost(member, -1 if promised is None else promised[0])

    def loss_accepted(self, life: Life, last_index: int) -> None:
        """Note that an operator lets a starting node vote, although entries that it acknowledged may be missing."""
        self.happened["loss accepted"] += 1
        self.losses.accepted(life.replica_id, last_index)

    def _check_doubt(self, life: Life) -> None:
        """Check that a member in doubt votes only once it has all committed entries that it acknowledged."""
        if self.sync or not life.replica.engine.may_vote:
            return
        owed = self.losses.made_good(life.replica_id)
        store = life.replica.store
        index = -1 if owed is None else self.losses.must_hold(min(owed, len(self.committed) - 1))
        if index < store.first_index:
            return
        meta = _find_entry(life, index) if index <= store.last_index else None
        require(
            (meta is not None and meta.chain_crc == self.committed[index][2]) or life.node.rotten,
            "a node in doubt votes again once it has the entries that it acknowledged",
            node=life.node.name,
            acknowledged=owed,
            last=store.last_index,
        )

    def snapshot_listed(self, life: Life, meta: SnapshotMeta) -> None:
        """Check a snapshot that a node made or received, when the node lists it."""
        if self.losses.is_void(meta.last_index, meta.chain_crc):
            return
        self.memberships.check_snapshot(life.node.name, meta, len(self.committed) - 1)

    def ended(self, life: Life) -> None:
        """Note that a node has ended."""
        if self.lives.get(life.replica_id) is life:
            del self.lives[life.replica_id]
            self._log_ends[life.replica_id] = life.replica.store.end_position

    @property
    def end_position(self) -> int:
        """Highest end of any log, including the logs of members that do not run."""
        ends = [life.replica.store.end_position for life in self.lives.values()]
        return max([*ends, *self._log_ends.values()], default=0)

    def amnesia(self, name: str) -> None:
        """Note that an injected fault has wiped or damaged a node's platter: any of its entries may be gone."""
        for member in self.disks:
            if member.node_id == name:
                life = self.lives.get(member)
                end = self._log_ends[member] if life is None else life.replica.store.end_position
                self.forgetful[member] = max(end, self.forgetful.get(member, 0))

    def forgotten_to(self, name: str) -> int:
        """Return the position below which a node may have lost its log."""
        return max([end for member, end in self.forgetful.items() if member.node_id == name], default=0)

    def _is_excused(self, member: ReplicaId, position: int) -> bool:
        """Return whether a member may have lost its log at a position."""
        return position < self.forgetful.get(member, 0)

    # ---------------------------------------------------------------- after every event

    def observe(self, life: Life) -> None:
        """Check a node after an event."""
        replica = life.replica
        if replica.failure is not None or replica.rewriter.is_active:
            return  # until the log is rewritten, the disk does not have the log that the engine knows
        engine, store = replica.engine, replica.store
        standing = replica.standing
        require(
            standing.is_ready == standing.derive_readiness(), "a replica knows after every event whether it is ready"
        )
        if not self.sync:
            self._check_doubt(life)
        if engine.role is _LEADER and engine.term != life.led_term:
            life.led_term = engine.term
            self._check_election(life)
        commit = engine.commit_index
        if commit != life.commit_seen:
            require(
                commit > life.commit_seen,
                "a commit index never goes back",
                node=life.node.name,
                now=commit,
                before=life.commit_seen,
            )
            self._check_commits(life, life.commit_seen + 1, commit)
            self.memberships.check_leaves(life)
            life.commit_seen = commit
        first = store.first_index
        if first != life.first_seen:
            self.happened["log replaced" if first > life.last_seen + 1 else "log trimmed"] += 1
            life.first_seen = first
        life.last_seen = store.last_index
        if engine.membership_index != life.membership_known or first != life.membership_from:
            life.membership_known, life.membership_from = engine.membership_index, first
            self.memberships.check_replica(life, len(self.committed) - 1)
        if engine.role is _LEADER and engine.membership_index != life.membership_seen:
            life.membership_seen = engine.membership_index
            self.memberships.check_leader(life, len(self.committed) - 1)
        applied = replica.applied_index
        if applied != life.applied_seen:
            require(applied <= commit, "only committed entries are applied", node=life.node.name, applied=applied)
            life.applied_seen = applied

    def _check_election(self, life: Life) -> None:
        engine, store = life.replica.engine, life.replica.store
        leader = self.leaders.setdefault(engine.term, life.replica_id)
        require(leader == life.replica_id, "one leader a term", term=engine.term, first=leader, second=life.replica_id)
        # Votes may arrive late: a leader need not know the entries that leaders of higher terms have committed
        # meanwhile.
        last = self.losses.must_hold(bisect_left(self.committed_in, engine.term) - 1)
        if store.first_index > last:
            return
        meta = _find_entry(life, last) if last <= store.last_index else None
        held = None if meta is None else (meta.term, meta.position, meta.chain_crc)
        require(
            held == self.committed[last] or (life.node.rotten and last <= store.last_index),
            "a leader holds all entries that were committed in earlier terms",
            leader=life.replica_id,
            term=engine.term,
            index=last,
            committed=self.committed[last],
            held=held,
        )

    def _check_commits(self, life: Life, first: int, last: int) -> None:
        store = life.replica.store
        if first < store.first_index:
            first = store.first_index
            base = store.snapshots.at_or_below(store.first_position)
            require(
                base is not None
                and (
                    self.committed[base.last_index][2] == base.chain_crc
                    or self.losses.is_void(base.last_index, base.chain_crc)
                ),
                "a snapshot stands on committed entries",
                node=life.node.name,
                base=base,
            )
        for index in range(first, last + 1):
            self._check_commit(life, index)

    def _check_commit(self, life: Life, index: int) -> None:
        store = life.replica.store
        if index < store.first_index:
            # The replica's log begins behind that entry. Its snapshot may contain entries that were lost since.
            base = store.snapshots.at_or_below(store.first_position) if self.losses.are_possible else None
            life.astray = base is not None and self.losses.is_void(base.last_index, base.chain_crc)
            return
        meta = _find_entry(life, index)
        if meta is None:
            return
        found = (meta.term, meta.position, meta.chain_crc)
        committed = self.committed
        if self._is_astray(life, index, found):
            return
        # A later leader commits here: its entry may be older than the entry that is lost.
        is_later = index < len(committed) and life.replica.engine.term > self.committed_in[index]
        if is_later and committed[index] != found and self.losses.may_lose(index):
            self._note_lost(index)
        if index < len(committed):
            require(
                committed[index] == found,
                "all replicas commit the same entry at an index",
                node=life.node.name,
                index=index,
                found=found,
                committed=committed[index],
            )
            return
        require(index == len(committed), "entries are committed in order", index=index, known=len(committed))
        committed.append(found)
        self.committed_in.append(life.replica.engine.term)
        data = self._read_entry(life, meta)
        self.memberships.committed(meta, data)
        membership = life.replica.engine.membership
        path = segment_path(meta.position - meta.position % store.segment_bytes)
        offset = meta.position % store.segment_bytes
        holders = [
            voter
            for voter in membership.voters
            if self._is_excused(voter, meta.position)
            or self.losses.excuses(voter, index)
            or (voter in self.disks and self._read_disk(self.disks[voter], path, offset, meta.size) == data)
        ]
        require(
            len(holders) >= membership.quorum,
            "a committed entry is on the platters of a majority",
            index=index,
            holders=[str(holder) for holder in holders],
            voters=len(membership.voters),
        )

    def _read_entry(self, life: Life, meta: EntryMeta) -> bytes:
        """Return the bytes of an entry. A disk whose sync has failed may show what was there before."""
        for other in (life, *self.lives.values()):
            store = other.replica.store
            if other.node.life is other and not other.node.has_lost_sync and meta.index <= store.last_index:
                found = _find_entry(other, meta.index) if meta.index >= store.first_index else None
                if found is not None and found.chain_crc == meta.chain_crc:
                    return store.read(meta.position, meta.size)
        return life.replica.store.read(meta.position, meta.size)

    def _is_astray(self, life: Life, index: int, found: Identity) -> bool:
        """Return whether a replica commits lost entries. Only a leader can inform the replica of the loss."""
        if not self.losses.are_possible or self.committed[index : index + 1] == [found]:
            return False
        newest = self.committed_in[-1] if self.committed_in else 0
        late = self.losses.may_lose(index) and life.replica.engine.term < newest
        if late:
            self.losses.add_void(index, found)
        life.astray = late or self.losses.is_void(index, found[2])
        return life.astray

    def _note_lost(self, first_index: int) -> None:
        """Note that another entry was committed at an index: the entries committed from there on are lost."""
        self.happened["committed entries lost"] += 1
        self.losses.lose(first_index, self.committed[first_index:])
        self.memberships.lost(first_index)
        del self.committed[first_index:], self.committed_in[first_index:]

    def _read_disk(self, disk: SimDisk, path: str, offset: int, size: int) -> bytes:
        """Return a part of a file from the platter, or from the page cache without `sync`."""
        return disk.durable_bytes(path, offset, size) if self.sync else disk.cached_bytes(path, offset, size)

    def truncating(self, life: Life, first_index: int) -> None:
        """Check that none of the entries from `first_index` on, which are about to be dropped, is committed."""
        self.happened["entries truncated"] += 1
        promised = self._promised.get(life.replica_id)
        if promised is not None and promised[0] >= first_index:
            del self._promised[life.replica_id]
        self._check_dropped(life, first_index)

    def replacing(self, life: Life, base: SnapshotMeta) -> None:
        """Check that a snapshot that replaces the log drops no committed entry after its last entry."""
        promised = self._promised.get(life.replica_id)
        if promised is not None and promised[0] > base.last_index:
            del self._promised[life.replica_id]
        self._check_dropped(life, max(base.last_index + 1, life.replica.store.first_index))

    def _check_dropped(self, life: Life, first_index: int) -> None:
        last = min(life.replica.store.last_index, len(self.committed) - 1)
        for index in range(first_index, last + 1):
            meta = _find_entry(life, index)
            require(
                meta is None
                or (meta.term, meta.position, meta.chain_crc) != self.committed[index]
                or self.losses.may_lose(index),
                "a committed entry is never truncated",
                node=life.node.name,
                index=index,
            )

    # ---------------------------------------------------------------- messages

    def sending(self, life: Life, to: str, message: Message) -> None:
        """Check a message that is about to leave a node."""
        if isinstance(message, AppendReply | HeartbeatReply):
            self._check_acknowledgement(life, message)
            if isinstance(message, AppendReply) and message.rejected:
                self.happened["conflict"] += 1
        elif isinstance(message, InstallSnapshot):
            self.happened["snapshot sent"] += 1
            void = self.losses.is_void(message.last_index, message.chain_crc)
            require(
                not void or life.astray, "no snapshot of lost entries is sent", node=life.node.name, snapshot=message
            )
            if not void:
                self.memberships.check_snapshot(life.node.name, message, len(self.committed) - 1)
        promised = message.term
        if isinstance(message, VoteRequest):
            if message.pre:
                promised -= 1
            else:
                self._pre_votes.check(life.replica, message)
                self._check_vote(life, message.term, life.replica_id)
        elif isinstance(message, VoteReply):
            life.hearing.sending(to, message)
            doubtful = message.granted and self.losses.is_in_doubt(life.replica_id)
            require(
                not doubtful, "a node in doubt votes for no candidate", node=life.node.name, candidate=to, reply=message
            )
            if message.pre:
                promised = 0
                if message.granted:
                    self._pre_votes.granted(life.replica_id, to, message.term)
            elif message.granted:
                candidate = next((replica for replica in self.lives if replica.node_id == to), None)
                if candidate is not None:
                    self._check_vote(life, message.term, candidate)
        if promised > life.term_durable:
            life.term_durable = min([state.term for state in durable_hard_states(life.node.disk)], default=0)
            require(
                promised <= life.term_durable,
                "no message carries a term that is not durable in both copies",
                node=life.node.name,
                message=message,
                durable=life.term_durable,
            )

    def _check_vote(self, life: Life, term: int, candidate: ReplicaId) -> None:
        me = life.replica_id
        durable = durable_hard_state(life.node.disk)
        require(
            durable.term > term or durable == (term, candidate),
            "a vote is durable before it leaves",
            voter=me,
            term=term,
            candidate=candidate,
            durable=durable,
        )
        first = self.votes.setdefault((term, me), candidate)
        require(first == candidate, "one vote a term", voter=me, term=term, first=first, second=candidate)

    def _check_acknowledgement(self, life: Life, reply: AppendReply | HeartbeatReply) -> None:
        match = reply.match_index
        replica = life.replica
        engine, store = replica.engine, replica.store
        if match < 0 or life.match_checked == (reply.term, match) or reply.term != engine.term:
            return
        life.match_checked = (reply.term, match)
        require(
            match <= store.last_index,
            "an acknowledged entry is in the sender's log",
            node=life.node.name,
            index=match,
            last=store.last_index,
        )
        if match < store.first_index:
            return
        meta = _find_entry(life, match)
        if meta is None:
            return
        if self.sync:
            life.platter.require_log(meta.end, "an acknowledged entry is on the sender's platter", index=match)
        promised = self._promised.get(life.replica_id)
        if promised is None or match > promised[0]:
            self._promised[life.replica_id] = (match, meta.position, meta.chain_crc)
        leader = self.lives.get(self.leaders.get(reply.term, life.replica_id))
        if leader is None or leader is life or leader.replica.engine.term != reply.term:
            return
        log = leader.replica.store
        if log.first_index <= match and leader.replica.engine.is_leader:
            known = _find_entry(leader, match) if match <= log.last_index else None
            require(
                match <= log.last_index and (known is None or known.chain_crc == meta.chain_crc),
                "an acknowledged entry equals the leader's",
                node=life.node.name,
                leader=leader.node.name,
                term=reply.term,
                index=match,
            )

    # ---------------------------------------------------------------- operations

    def applying(self, me: ReplicaId) -> Applied:
        """Return the callback for a replica's state machine.

        It gets the entry, its units as (key, operation, position), and the digest of the new state.
        """

        def applied(entry: CommittedEntry, units: Sequence[tuple[int, int, int]], state: int) -> None:
            known = self.states.setdefault((entry.index, entry.term, entry.position), state)
            require(known == state, "equal logs make equal states", node=me, index=entry.index)
            for _, operation, position in units:
                require(
                    operation not in self.failed, "a failed operation is never applied", operation=operation, node=me
                )
                first = self.applied.setdefault(operation, position)
                require(
                    first == position,
                    "an operation is applied at one position",
                    operation=operation,
                    first=first,
                    second=position,
                )

        return applied

    def answered_ok(self, operation: int, position: int) -> None:
        """Check an operation that is answered as logged."""
        require(
            self.applied.get(operation) == position,
            "an acknowledged operation is applied at the position that its answer names",
            operation=operation,
            answered=position,
            applied=self.applied.get(operation),
        )

    def answered_fail(self, operation: int) -> None:
        """Check an operation that is answered as not proposed."""
        require(operation not in self.applied, "a failed operation is never applied", operation=operation)
        self.failed.add(operation)
