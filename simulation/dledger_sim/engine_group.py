"""Group of engines, driven by the test.

    group = EngineGroup(NATIVE.start, "a", "b", "c")
    group.elect("a")
    index = group.propose("a")
    group.settle()
    assert group["b"].commit_index == index

By default saves and syncs complete at once, and `settle` delivers messages on their way, oldest first. A test can
control each of these: `cut` and `heal` directed pairs, `hold` chosen messages and `release` them later. It can turn
`auto_sync` or `auto_save` off and call `sync` and `save`, or `crash` an engine with the loss of all that was not
synced.

Some promises are checked all along, whatever a test does:

- A term has one leader, and it holds all entries committed in earlier terms.
- All engines commit the same entries, with the bytes with which they were proposed.
- Committed entries are never truncated.
- A read that `read` began sees all entries that were committed when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Generic, TypeVar

from dledger.consensus.effects import (
    AppendEntries,
    Commit,
    Effect,
    Output,
    ReadsFailed,
    ReadsReady,
    ResetLog,
    RoleChanged,
    SaveHardState,
    SendCatchUp,
    SendEntries,
    SendMessage,
    SendSnapshot,
    Truncate,
)
from dledger.consensus.engine import Engine, EngineStart, KnownLog, RaftSettings
from dledger.consensus.messages import Message, MessageCodec
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta
from dledger_base.invariants import invariant

ENTRY_BYTES = 48
STEP_S = 0.02

E = TypeVar("E", bound=Engine)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way, with the metas of its entries."""

    sender: str
    to: str
    message: Message
    metas: tuple[EntryMeta, ...] = ()


class Member(Generic[E]):
    """One engine with the state that its driver would keep for it."""

    def __init__(self, name: str, engine: E) -> None:
        self.name = name
        self.engine = engine
        self.log: list[EntryMeta] = []
        """Kept entries. The first has the index `first_index`."""
        self.first_index = 0
        self.base_term = 0
        """Term of the entry before the first kept one."""
        self.durable = 0
        """Number of entries of `log` that would survive a crash."""
        self.hard_state = HardState()
        """Term and vote that would survive a crash."""
        self.pending_saves: list[HardState] = []
        """Requested saves that are not durable yet."""
        self.waiting_effects: list[tuple[int, Effect]] = []
        """Effects that wait, each with the number of saves that must be durable first."""
        self.completed_saves = self.requested_saves = 0
        self.commits: list[int] = []
        self.reads: list[int] = []
        """Numbers of the confirmed rounds of reads."""
        self.read_floors: dict[int, int] = {}
        """For each unconfirmed round of `EngineGroup.read`, the highest index committed by any member when it began."""
        self.reads_failed = 0
        self.snapshots_requested: list[ReplicaId] = []

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.log) - 1

    def term_at(self, index: int) -> int | None:
        """Return the term of a kept entry, or of the entry before the first one; else None."""
        if index == self.first_index - 1:
            return self.base_term
        return self.log[index - self.first_index].term if self.first_index <= index <= self.last_index else None

    @property
    def terms(self) -> list[int]:
        """Terms of all kept entries."""
        return [meta.term for meta in self.log]


class EngineGroup(Generic[E]):
    """Engines by name. `group["a"]` is the engine itself, `group.members["a"]` the engine with its driver's state."""

    def __init__(
        self,
        start: Callable[[EngineStart], E],
        *voters: str,
        learners: Iterable[str] = (),
        strangers: Iterable[str] = (),
        seed: int = 1,
        max_run_bytes: int = 1 << 20,
        codec: MessageCodec | None = None,
    ) -> None:
        """Make the group.

        `strangers` run but are not members. With a codec, all messages are encoded and decoded by it.
        """
        self.settings = RaftSettings(max_run_bytes=max_run_bytes)
        self.membership = Membership(tuple(replica(name) for name in voters), tuple(replica(name) for name in learners))
        self.now = 10.0
        self.auto_save = True
        self.auto_sync = True
        self.unsynced: set[str] = set()
        """Members whose syncs do not complete by themselves, although `auto_sync` is on."""
        self.committed: dict[int, tuple[int, int]] = {}
        """Index to (term, the leader's term at the commit), of every entry that any member ever committed."""
        self.wire: list[Envelope] = []
        self.held: list[Envelope] = []
        self.leaders: dict[int, str] = {}
        """Leader of each term."""
        self._start = start
        self._codec = codec
        self._appended: list[EntryMeta] = []
        """Entries appended by the last delivered message."""
        self._random = Random(seed)
        self._cut: set[tuple[str, str]] = set()
        self._hold: Callable[[Envelope], bool] = lambda _envelope: False
        self.members: dict[str, Member[E]] = {}
        for name in (*voters, *learners, *strangers):
            log = KnownLog(membership=self.membership)
            self.members[name] = Member(name, self._begin(name, log, HardState(), -1))

    def _begin(self, name: str, log: KnownLog, hard_state: HardState, commit_index: int, *, may_vote: bool = True) -> E:
        start = EngineStart(
            replica(name),
            log,
            hard_state,
            log.last_index,
            commit_index,
            self.settings,
            Random(self._random.random()),
            self.now,
            may_vote,
        )
        return self._start(start)

    def __getitem__(self, name: str) -> E:
        return self.members[name].engine

    # ---------------------------------------------------------------- what a test does

    def elect(self, name: str) -> None:
        """Let time pass for one member until it campaigns, then deliver all messages. It must win."""
        self.campaign(name)
        self.settle()
        invariant(self[name].is_leader, "the candidate wins", name=name, role=self[name].role)

    def campaign(self, name: str) -> None:
        """Let time pass for one member until it asks for votes. Nothing is delivered."""
        engine = self[name]
        before = len(self.wire) + len(self.held)
        for _ in range(400):
            self.tick(name, STEP_S)
            if engine.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) or engine.is_leader:
                return
        invariant(condition=False, what="a member without a leader campaigns", name=name, sent=len(self.wire) - before)

    def tick(self, name: str, after_s: float = 0.0) -> None:
        """Tick one member, `after_s` seconds later."""
        self.now += after_s
        self[name].tick(self.now)
        self.run(name)

    def pass_time(self, seconds: float, *names: str) -> None:
        """Tick the named engines (by default all) and deliver messages, step by step."""
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for name in names or tuple(self.members):
                self[name].tick(self.now)
                self.run(name)
            self.settle()

    def propose(self, name: str, count: int = 1, membership: Membership | None = None) -> int:
        """Propose entries at a leader, and return the index of the last one."""
        kind = EntryKind.GROUP if membership is None else EntryKind.MEMBERSHIP
        index = self.members[name].last_index + 1
        for place in range(count):
            self._propose(name, index + place, kind, membership)
        self.run(name)
        return index + count - 1

    def read(self, name: str) -> int | None:
        """Begin a read. It must see all entries that any member has committed by now."""
        member = self.members[name]
        number = member.engine.read_index(self.now)
        if number is not None:
            member.read_floors[number] = max(self.committed, default=-1)
        self.run(name)
        return number

    def settle(self, limit: int = 20_000) -> None:
        """Deliver messages until no message is on its way."""
        for _ in range(limit):
            if not self.wire:
                return
            self.deliver(self.wire.pop(0))
        invariant(condition=False, what="messages come to an end", left=len(self.wire))

    def deliver(self, envelope: Envelope) -> None:
        """Deliver one message."""
        member = self.members[envelope.to]
        data = contents(envelope.metas)
        expected = list(member.engine.to_append(envelope.message, envelope.metas)) if envelope.metas else []
        self._appended = []
        member.engine.step(replica(envelope.sender), envelope.message, self.now, envelope.metas, data)
        self.run(envelope.to)
        if envelope.metas:
            invariant(self._appended == expected, "an engine appends what it said", found=self._appended, said=expected)

    def send(self, sender: str, to: str, message: Message, metas: Iterable[EntryMeta] = ()) -> list[Message]:
        """Deliver a made-up message, and return the receiver's immediate answers to the sender."""
        self.deliver(Envelope(sender, to, message, tuple(metas)))
        answers = [sent for sent in self.wire if (sent.sender, sent.to) == (to, sender)]
        self.wire = [sent for sent in self.wire if sent not in answers]
        return [sent.message for sent in answers]

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Lose everything that is sent on these directed pairs."""
        self._cut.update(pairs)
        self.wire = [sent for sent in self.wire if (sent.sender, sent.to) not in self._cut]

    def join(self, *pairs: tuple[str, str]) -> None:
        """Undo single cuts without notifying any member."""
        self._cut.difference_update(pairs)

    def isolate(self, name: str) -> None:
        """Cut a member off in both directions."""
        self.cut(*((name, other) for other in self.members), *((other, name) for other in self.members))

    def heal(self) -> None:
        """Undo all cuts. Leaders are notified that their links are up again."""
        self._cut.clear()
        for member in self.members.values():
            for peer in list(member.engine.progress):
                member.engine.peer_disconnected(peer)
                member.engine.peer_connected(peer, self.now)
            self.run(member.name)

    def hold(self, which: Callable[[Envelope], bool]) -> None:
        """Keep chosen messages in `held` instead of on the wire, from now on."""
        self._hold = which

    def release(self) -> None:
        """Put all held messages onto the wire, and stop holding messages."""
        self._hold = lambda _envelope: False
        self.wire += self.held
        self.held = []

    def save(self, name: str) -> None:
        """Complete the oldest outstanding save of term and vote."""
        member = self.members[name]
        member.hard_state = member.pending_saves.pop(0)
        member.completed_saves += 1
        member.engine.hard_state_saved(member.hard_state, self.now)
        self.run(name)
        self._release_saved(member)

    def begin_sync(self, name: str) -> Callable[[], None]:
        """Begin a sync. It completes when the returned function is called."""
        member = self.members[name]
        generation, index = member.engine.generation, member.first_index + len(member.log) - 1

        def complete() -> None:
            if generation == member.engine.generation:
                member.durable = max(member.durable, index - member.first_index + 1)
            member.engine.synced(generation, index, self.now)
            self.run(name)

        return complete

    def sync(self, name: str) -> None:
        """Begin and complete a sync."""
        self.begin_sync(name)()

    def crash(self, name: str, *, unread: bool = False, may_vote: bool = True) -> None:
        """Lose everything that is not durable, and start again. With `unread` no entry's bytes verify any more."""
        member = self.members[name]
        fresh = Member(name, member.engine)
        fresh.log = member.log[: member.durable]
        fresh.first_index, fresh.durable, fresh.hard_state = member.first_index, len(fresh.log), member.hard_state
        fresh.base_term = member.base_term
        base = fresh.first_index - 1
        runs: list[tuple[int, int]] = []
        for meta in fresh.log:
            if not runs or runs[-1][1] != meta.term:
                runs.append((meta.index, meta.term))
        membership_index, membership = member.engine.membership_at(base)
        log = KnownLog(
            base,
            member.base_term,
            runs,
            base + len(fresh.log),
            membership,
            membership_index,
            [] if unread else [meta for meta in fresh.log if meta.membership is not None],
            [(base + 1, base + 1 + len(fresh.log))] if unread else [],
        )
        fresh.engine = self._begin(name, log, fresh.hard_state, base, may_vote=may_vote)
        self.members[name] = fresh
        self.wire = [sent for sent in self.wire if sent.sender != name]

    def compact(self, name: str, index: int) -> None:
        """Drop the entries up to `index`, as a trim does."""
        member = self.members[name]
        term = member.term_at(index)
        invariant(term is not None and index <= member.engine.commit_index, "only committed entries are dropped")
        del member.log[: index + 1 - member.first_index]
        member.durable -= index + 1 - member.first_index
        member.first_index, member.base_term = index + 1, term or 0
        member.engine.trimmed(index, term or 0)

    def install(self, leader: str, to: str) -> None:
        """Send the snapshot that a leader's log starts behind."""
        member, engine = self.members[leader], self[leader]
        at, membership = engine.membership_at(member.first_index - 1)
        position, base = member.first_index * ENTRY_BYTES, member.first_index - 1
        snapshot = SnapshotMeta(position, base, member.base_term, 0, membership, at)
        self._post(Envelope(leader, to, engine.snapshot_message(engine.term, snapshot)))
        engine.snapshot_sent(replica(to), engine.term, self.now)

    # ---------------------------------------------------------------- what the driver does

    def run(self, name: str) -> None:
        """Carry out a member's effects."""
        member = self.members[name]
        while True:
            output: Output = member.engine.take()
            if not output.effects and not output.after_sync:
                return
            for effect in output.effects:
                self._execute(member, effect)
            member.waiting_effects += [(member.requested_saves, effect) for effect in output.after_sync]
            self._release_saved(member)

    def _release_saved(self, member: Member[E]) -> None:
        while member.waiting_effects and member.waiting_effects[0][0] <= member.completed_saves:
            self._execute(member, member.waiting_effects.pop(0)[1])

    def _execute(self, member: Member[E], effect: Effect) -> None:
        match effect:
            case AppendEntries(metas, data):
                invariant(bytes(data) == contents(metas), "entries keep their bytes", name=member.name, metas=metas)
                self._append(member, metas)
            case Truncate(first_index):
                committed = member.commits[-1] if member.commits else -1
                invariant(first_index > committed, "what is committed is kept", first=first_index, committed=committed)
                del member.log[first_index - member.first_index :]
                member.durable = min(member.durable, len(member.log))
            case ResetLog(base):
                member.log, member.first_index, member.durable = [], base.last_index + 1, 0
                member.base_term = base.last_term
            case SendMessage(to, message):
                self._post(Envelope(member.name, to.node_id, message))
            case SendEntries(to, message):
                entries = message.entries
                assert entries is not None
                first = entries.prev_index + 1 - member.first_index
                self._post(Envelope(member.name, to.node_id, message, tuple(member.log[first : first + entries.count])))
            case SendCatchUp():
                self._catch_up(member, effect)
            case SaveHardState(state):
                member.requested_saves += 1
                member.pending_saves.append(state)
                if self.auto_save:
                    self.save(member.name)
            case Commit(index):
                member.commits.append(index)
                self._check_commit(member, index)
            case RoleChanged(Role.LEADER, _, _):
                self._check_leader(member)
                self._propose(member.name, member.last_index + 1, EntryKind.NO_OP, None)
            case ReadsReady(number, index):
                member.reads.append(number)
                self._check_reads(member, number, index)
            case ReadsFailed():
                member.reads_failed += 1
                member.read_floors.clear()
            case SendSnapshot(to, _):
                member.snapshots_requested.append(to)

    def _check_commit(self, member: Member[E], index: int) -> None:
        for at in range(member.first_index, index + 1):
            term = member.log[at - member.first_index].term
            known, _ = self.committed.setdefault(at, (term, member.engine.term))
            invariant(
                known == term, "all cores commit the same entries", name=member.name, index=at, terms=(known, term)
            )

    def _check_reads(self, member: Member[E], number: int, index: int) -> None:
        for round_number in [number_begun for number_begun in member.read_floors if number_begun <= number]:
            committed = member.read_floors.pop(round_number)
            invariant(
                index >= committed, "a read sees what was committed before it", name=member.name, at=(index, committed)
            )

    def _check_leader(self, member: Member[E]) -> None:
        leader = self.leaders.setdefault(member.engine.term, member.name)
        invariant(leader == member.name, "one leader a term", term=member.engine.term, leaders=(leader, member.name))
        for at, (term, committed_in) in self.committed.items():
            held = member.term_at(at)
            invariant(
                held == term or at < member.first_index or committed_in >= member.engine.term,
                "a leader holds what was committed in earlier terms",
                name=member.name,
                index=at,
                terms=(term, held),
            )

    def _append(self, member: Member[E], metas: Iterable[EntryMeta]) -> None:
        for meta in metas:
            invariant(meta.index == member.first_index + len(member.log), "entries are appended in order", meta=meta)
            member.log.append(meta)
            self._appended.append(meta)
        if self.auto_sync and member.name not in self.unsynced:
            member.durable = len(member.log)
            member.engine.synced(member.engine.generation, member.log[-1].index, self.now)

    def _catch_up(self, member: Member[E], effect: SendCatchUp) -> None:
        engine = member.engine
        first, count = effect.first_index - member.first_index, max(1, effect.max_bytes // ENTRY_BYTES)
        metas = tuple(member.log[first : first + count])
        if not engine.is_leader or engine.term != effect.term:
            return
        message = engine.catch_up_message(effect.term, metas)
        assert message is not None
        self._post(Envelope(member.name, effect.to.node_id, message, metas))
        engine.catch_up_sent(effect.to, effect.term, metas[-1].index, ENTRY_BYTES * len(metas), self.now)

    def _propose(self, name: str, index: int, kind: EntryKind, membership: Membership | None) -> None:
        engine = self[name]
        meta = EntryMeta(index, engine.term, index * ENTRY_BYTES, ENTRY_BYTES, kind, membership=membership)
        engine.propose((meta,), contents((meta,)), self.now)

    def _post(self, envelope: Envelope) -> None:
        if (envelope.sender, envelope.to) in self._cut or envelope.to not in self.members:
            return
        if self._codec is not None:
            envelope = replace(envelope, message=self._codec.decode(self._codec.encode(envelope.message)))
        (self.held if self._hold(envelope) else self.wire).append(envelope)


def replica(name: str) -> ReplicaId:
    """Return the replica id of a member."""
    return ReplicaId(name, "first")


def contents(metas: Iterable[EntryMeta]) -> bytes:
    """Return the bytes of entries, which are different for each entry."""
    return b"".join((b"%d.%d " % (meta.index, meta.term) * meta.size)[: meta.size] for meta in metas)


def entries(*terms: int, first: int = 0) -> tuple[EntryMeta, ...]:
    """Return entries of these terms, from index `first` on."""
    return tuple(EntryMeta(index, term, index * ENTRY_BYTES, ENTRY_BYTES) for index, term in enumerate(terms, first))
