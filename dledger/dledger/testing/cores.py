"""A group of pure cores, with the test as their driver.

    group = CoreGroup("a", "b", "c")
    group.elect("a")
    index = group.propose("a")
    group.settle()
    assert group["b"].commit_index == index

By default saves and syncs complete at once and `settle` delivers what is on its way, oldest first.  A test takes any
of it into its own hands: `cut` and `heal` directed pairs, `hold` chosen messages and `release` them later, set
`auto_sync` or `auto_save` off and call `sync` and `save`, `crash` a core with the loss of what was not synced.

Whatever a test does, two promises are checked at every commit and every election: all cores commit the same entries,
and a leader holds all that were committed in earlier terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from dledger.core.effects import (
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
from dledger.core.log_table import LogTable
from dledger.core.messages import InstallSnapshot, Message
from dledger.core.raft import Raft
from dledger.core.settings import RaftSettings
from dledger.invariants import invariant
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId, Role

ENTRY_BYTES = 48
STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way, with the metas of its entries."""

    sender: str
    to: str
    message: Message
    metas: tuple[EntryMeta, ...] = ()


class Core:
    """One core with what its driver would keep for it."""

    def __init__(self, name: str, raft: Raft) -> None:
        self.name = name
        self.raft = raft
        self.log: list[EntryMeta] = []
        """Kept entries, the first at `first_index`."""
        self.first_index = 0
        self.durable = 0
        """How many entries of `log` would survive a crash."""
        self.hard_state = HardState()
        """What would survive a crash."""
        self.saves: list[HardState] = []
        """Asked for and not durable yet."""
        self.held: list[tuple[int, Effect]] = []
        """What waits for that many saves."""
        self.saved = self.asked = 0
        self.commits: list[int] = []
        self.reads: list[int] = []
        """Rounds that were confirmed."""
        self.reads_failed = 0
        self.snapshots_asked: list[ReplicaId] = []

    @property
    def terms(self) -> list[int]:
        """The term of every kept entry."""
        return [meta.term for meta in self.log]


class CoreGroup:
    """Cores by name; `group["a"]` is the core itself, `group.cores["a"]` it and what its driver keeps."""

    def __init__(
        self,
        *voters: str,
        learners: Iterable[str] = (),
        strangers: Iterable[str] = (),
        seed: int = 1,
        one_entry_a_message: bool = False,
    ) -> None:
        """`strangers` run but are no members."""
        self.settings = RaftSettings(max_run_bytes=ENTRY_BYTES) if one_entry_a_message else RaftSettings()
        self.membership = Membership(tuple(replica(name) for name in voters), tuple(replica(name) for name in learners))
        self.now = 10.0
        self.auto_save = True
        self.auto_sync = True
        self.committed: dict[int, tuple[int, int]] = {}
        """Index to (term, the leader's term when it was committed), of everything any core ever committed."""
        self.wire: list[Envelope] = []
        self.held: list[Envelope] = []
        self._random = Random(seed)
        self._cut: set[tuple[str, str]] = set()
        self._hold: Callable[[Envelope], bool] = lambda _envelope: False
        self.cores: dict[str, Core] = {}
        for name in (*voters, *learners, *strangers):
            core = Core(name, self._raft(name, LogTable(base_membership=self.membership), HardState(), -1))
            self.cores[name] = core

    def _raft(self, name: str, table: LogTable, hard_state: HardState, commit_index: int) -> Raft:
        return Raft(
            replica(name),
            table,
            hard_state,
            durable_index=table.last_index,
            commit_index=commit_index,
            settings=self.settings,
            random=Random(self._random.random()),
            now=self.now,
        )

    def __getitem__(self, name: str) -> Raft:
        return self.cores[name].raft

    # ---------------------------------------------------------------- what a test does

    def elect(self, name: str) -> None:
        """Let time pass for one core until it campaigns, then let everybody talk; it must win."""
        self.campaign(name)
        self.settle()
        invariant(self[name].is_leader, "the candidate wins", name=name, role=self[name].role)

    def campaign(self, name: str) -> None:
        """Let time pass for one core until it asks for votes; nothing is delivered."""
        raft = self[name]
        before = len(self.wire) + len(self.held)
        for _ in range(400):
            self.tick(name, STEP_S)
            if raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) or raft.is_leader:
                return
        invariant(condition=False, what="a core without a leader campaigns", name=name, sent=len(self.wire) - before)

    def tick(self, name: str, after_s: float = 0.0) -> None:
        """Tick one core, `after_s` seconds later."""
        self.now += after_s
        self[name].tick(self.now)
        self.run(name)

    def pass_time(self, seconds: float, *names: str) -> None:
        """Tick the named cores (all by default) and deliver, step by step."""
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for name in names or tuple(self.cores):
                self[name].tick(self.now)
                self.run(name)
            self.settle()

    def propose(self, name: str, count: int = 1, membership: Membership | None = None) -> int:
        """Propose entries at a leader; returns the last one's index."""
        kind = EntryKind.GROUP if membership is None else EntryKind.MEMBERSHIP
        for _ in range(count):
            self._propose(name, kind, membership)
        self.run(name)
        return self[name].table.last_index

    def settle(self, limit: int = 20_000) -> None:
        """Deliver what is on its way until nothing is."""
        for _ in range(limit):
            if not self.wire:
                return
            self.deliver(self.wire.pop(0))
        invariant(condition=False, what="messages come to an end", left=len(self.wire))

    def deliver(self, envelope: Envelope) -> None:
        """Hand one message over."""
        core = self.cores[envelope.to]
        data = bytes(sum(meta.size for meta in envelope.metas))
        core.raft.step(replica(envelope.sender), envelope.message, self.now, envelope.metas, data)
        self.run(envelope.to)

    def send(self, sender: str, to: str, message: Message, metas: Iterable[EntryMeta] = ()) -> list[Message]:
        """Hand a made-up message over; returns what the receiver says to the sender at once."""
        self.deliver(Envelope(sender, to, message, tuple(metas)))
        answers = [sent for sent in self.wire if (sent.sender, sent.to) == (to, sender)]
        self.wire = [sent for sent in self.wire if sent not in answers]
        return [sent.message for sent in answers]

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Lose whatever is sent on these directed pairs."""
        self._cut.update(pairs)
        self.wire = [sent for sent in self.wire if (sent.sender, sent.to) not in self._cut]

    def join(self, *pairs: tuple[str, str]) -> None:
        """Undo single cuts; nobody is told."""
        self._cut.difference_update(pairs)

    def isolate(self, name: str) -> None:
        """Cut a core off in both directions."""
        self.cut(*((name, other) for other in self.cores), *((other, name) for other in self.cores))

    def heal(self) -> None:
        """Undo all cuts; leaders learn that their links are up again."""
        self._cut.clear()
        for core in self.cores.values():
            for peer in list(core.raft.progress):
                core.raft.peer_disconnected(peer)
                core.raft.peer_connected(peer, self.now)
            self.run(core.name)

    def hold(self, which: Callable[[Envelope], bool]) -> None:
        """Keep chosen messages in `held` instead of on the wire, from now on."""
        self._hold = which

    def release(self) -> None:
        """Put what was held onto the wire, and hold nothing any more."""
        self._hold = lambda _envelope: False
        self.wire += self.held
        self.held = []

    def save(self, name: str) -> None:
        """Complete the oldest outstanding save of term and vote."""
        core = self.cores[name]
        core.hard_state = core.saves.pop(0)
        core.saved += 1
        core.raft.hard_state_saved(core.hard_state, self.now)
        self.run(name)
        self._release_saved(core)

    def begin_sync(self, name: str) -> Callable[[], None]:
        """Begin a sync; it completes when the result is called."""
        core = self.cores[name]
        generation, index = core.raft.generation, core.first_index + len(core.log) - 1

        def complete() -> None:
            if generation == core.raft.generation:
                core.durable = max(core.durable, index - core.first_index + 1)
            core.raft.synced(generation, index, self.now)
            self.run(name)

        return complete

    def sync(self, name: str) -> None:
        """Begin and complete a sync."""
        self.begin_sync(name)()

    def crash(self, name: str, *, unread: bool = False) -> None:
        """Lose what is not durable, and start again; `unread`: no entry's bytes verify any more."""
        core = self.cores[name]
        fresh = Core(name, core.raft)
        fresh.log = core.log[: core.durable]
        fresh.first_index, fresh.durable, fresh.hard_state = core.first_index, len(fresh.log), core.hard_state
        base = fresh.first_index - 1
        runs: list[tuple[int, int]] = []
        for meta in fresh.log:
            if not runs or runs[-1][1] != meta.term:
                runs.append((meta.index, meta.term))
        membership_index, membership = core.raft.table.membership_at(base)
        table = LogTable(
            base,
            core.raft.table.term_at(base) or 0,
            runs,
            base + len(fresh.log),
            membership,
            membership_index,
            [] if unread else [meta for meta in fresh.log if meta.membership is not None],
            [(base + 1, base + 1 + len(fresh.log))] if unread else [],
        )
        fresh.raft = self._raft(name, table, fresh.hard_state, base)
        self.cores[name] = fresh
        self.wire = [sent for sent in self.wire if sent.sender != name]

    def compact(self, name: str, index: int) -> None:
        """Drop the entries up to `index`, as a trim does."""
        core = self.cores[name]
        term = core.raft.table.term_at(index)
        invariant(term is not None and index <= core.raft.commit_index, "only committed entries are dropped")
        del core.log[: index + 1 - core.first_index]
        core.durable -= index + 1 - core.first_index
        core.first_index = index + 1
        core.raft.trimmed(index, term or 0)

    def install(self, leader: str, to: str) -> None:
        """Send the snapshot that a leader's log starts behind."""
        table = self[leader].table
        at, membership = table.membership_at(table.base_index)
        message = InstallSnapshot(
            self[leader].term, table.first_index * ENTRY_BYTES, table.base_index, table.base_term, 0, membership, at
        )
        self._post(Envelope(leader, to, message))
        self[leader].snapshot_sent(replica(to), self[leader].term, self.now)

    # ---------------------------------------------------------------- what the driver does

    def run(self, name: str) -> None:
        """Carry out a core's effects."""
        core = self.cores[name]
        while True:
            output: Output = core.raft.take()
            if not output.effects and not output.after_sync:
                return
            for effect in output.effects:
                self._execute(core, effect)
            core.held += [(core.asked, effect) for effect in output.after_sync]
            self._release_saved(core)

    def _release_saved(self, core: Core) -> None:
        while core.held and core.held[0][0] <= core.saved:
            self._execute(core, core.held.pop(0)[1])

    def _execute(self, core: Core, effect: Effect) -> None:
        match effect:
            case AppendEntries(metas, _):
                self._append(core, metas)
            case Truncate(first_index):
                del core.log[first_index - core.first_index :]
                core.durable = min(core.durable, len(core.log))
            case ResetLog(base):
                core.log, core.first_index, core.durable = [], base.last_index + 1, 0
            case SendMessage(to, message):
                self._post(Envelope(core.name, to.node_id, message))
            case SendEntries(to, message):
                first = message.prev_index + 1 - core.first_index
                self._post(Envelope(core.name, to.node_id, message, tuple(core.log[first : first + message.count])))
            case SendCatchUp():
                self._catch_up(core, effect)
            case SaveHardState(state):
                core.asked += 1
                core.saves.append(state)
                if self.auto_save:
                    self.save(core.name)
            case Commit(index):
                core.commits.append(index)
                self._check_commit(core, index)
            case RoleChanged(Role.LEADER, _, _):
                self._check_leader(core)
                self._propose(core.name, EntryKind.NO_OP, None)
            case ReadsReady(number, _):
                core.reads.append(number)
            case ReadsFailed():
                core.reads_failed += 1
            case SendSnapshot(to, _):
                core.snapshots_asked.append(to)

    def _check_commit(self, core: Core, index: int) -> None:
        for at in range(core.first_index, index + 1):
            term = core.log[at - core.first_index].term
            known, _ = self.committed.setdefault(at, (term, core.raft.term))
            invariant(known == term, "all cores commit the same entries", name=core.name, index=at, terms=(known, term))

    def _check_leader(self, core: Core) -> None:
        for at, (term, committed_in) in self.committed.items():
            held = core.raft.table.term_at(at)
            invariant(
                held == term or at < core.first_index or committed_in >= core.raft.term,
                "a leader holds what was committed in earlier terms",
                name=core.name,
                index=at,
                terms=(term, held),
            )

    def _append(self, core: Core, metas: Iterable[EntryMeta]) -> None:
        for meta in metas:
            invariant(meta.index == core.first_index + len(core.log), "entries are appended in order", meta=meta)
            core.log.append(meta)
        if self.auto_sync:
            core.durable = len(core.log)
            core.raft.synced(core.raft.generation, core.log[-1].index, self.now)

    def _catch_up(self, core: Core, effect: SendCatchUp) -> None:
        raft = core.raft
        if not raft.is_leader or raft.term != effect.term:
            return
        first, count = effect.first_index - core.first_index, max(1, effect.max_bytes // ENTRY_BYTES)
        metas = tuple(core.log[first : first + count])
        prev_term = raft.table.term_at(effect.first_index - 1)
        invariant(metas and prev_term is not None, "a leader reads what it has", effect=effect)
        message = raft._append_message(effect.first_index - 1, len(metas))  # noqa: SLF001 - its driver makes the same
        self._post(Envelope(core.name, effect.to.node_id, message, metas))
        raft.catch_up_sent(effect.to, effect.term, metas[-1].index, ENTRY_BYTES * len(metas), self.now)

    def _propose(self, name: str, kind: EntryKind, membership: Membership | None) -> None:
        raft = self[name]
        index = raft.table.last_index + 1
        meta = EntryMeta(index, raft.term, index * ENTRY_BYTES, ENTRY_BYTES, kind, membership=membership)
        raft.propose((meta,), bytes(ENTRY_BYTES), self.now)

    def _post(self, envelope: Envelope) -> None:
        if (envelope.sender, envelope.to) in self._cut or envelope.to not in self.cores:
            return
        (self.held if self._hold(envelope) else self.wire).append(envelope)


def replica(name: str) -> ReplicaId:
    """The replica id of a core."""
    return ReplicaId(name, "first")


def entries(*terms: int, first: int = 0) -> tuple[EntryMeta, ...]:
    """Entries of these terms, from index `first` on."""
    return tuple(EntryMeta(index, term, index * ENTRY_BYTES, ENTRY_BYTES) for index, term in enumerate(terms, first))
