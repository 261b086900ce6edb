"""One replica's `SyncObj`, whose clock, log and links are replaced by the project's own.

The list says what stock PySyncObj 0.3.17 does, and how this package changes that:

- Its journal file is never synced, and may lose term and vote with acknowledged entries. Here `SyncObj` uses another
  journal (`dledger.engines.pysyncobj.journal`), whose changes become effects.
- It sends pickles, and runs the code in a pickle. Here a transport hands its messages to the engine as plain values.
  The engine sends its own messages. Entries never pass through `SyncObj`.
- It counts every vote that arrives, even if it has counted that vote before. The engine passes each vote on once.
- It counts its own vote and, as a leader, its own log, also before they are on the disk. Here it has two further
  members, described below.
- It counts written entries of a follower as acknowledged. The engine reports only durable entries to it.
- It cuts a follower's log where an append joins, even if the append is older than the log. The engine passes on only
  entries that are not there yet.
- A follower commits as far as its log goes, even if the end of its log is from another leader. The engine reports
  commits to it only up to entries that this term's leader has verified.
- It dumps its state by a log position of its own, in a file that is not synced. Here it makes no dumps: the replica
  makes snapshots.

This replica counts only with the entries on its disk. `SyncObj` counts itself in every case. So one of its members is
a placeholder that never answers: with it, one more of the others is needed for a majority. Another member stands for
this replica's disk. It votes once the vote is saved, and acknowledges synced entries. With n voters, `SyncObj` then
sees the n - 1 others and these two:

    1 + disk + others > (n + 1 + 1) / 2     means     disk + others > n / 2

If this replica is not a voter, its disk is not among the members, and the same holds without it.

`SyncObj` reads clock and randomness from names of its module. Each replica therefore has its own copy of that module,
in which these names are replaced. The module that others import stays unchanged.

`INTERNALS` names all private parts that are used. `tests/dledger/engines/test_pysyncobj_internals.py` fails once one
of them is missing or means something else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from random import Random
from types import ModuleType
from typing import Any, Final
from zlib import crc32

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from dledger.consensus.engine import RaftSettings
from dledger.engines.pysyncobj.journal import OFFSET, LogJournal
from dledger.types import EntryMeta, Membership, ReplicaId
from dledger_base.invariants import invariant

LibraryMessage = Mapping[str, Any]
"""A message of `SyncObj`, by its own names of fields."""

REPLACED: Final = {
    "monotonicTime": "the engine's calls set the time, so that it stops with the process, and can be simulated",
    "random": "a run of the simulator is repeated from its seed",
    "createJournal": "the log is the store's",
    "createPoller": "there are no sockets to wait for",
    "Serializer": "there are no dumps",
}
"""Names of the module `pysyncobj.syncobj` whose values are replaced, and why."""

INTERNALS: Final = {
    "__raftElectionDeadline": "read before a tick: a pre-vote goes first; set when one is won, or leadership is lost",
    "__raftNextIndex": "set where entries are sent in windows, and read back from files",
    "__raftMatchIndex": "set to what is durable both there and here, and lowered when a follower has lost something",
    "__otherNodes": "set to the voters: they change by entries of the log, with a number of entries at a time",
    "__readonlyNodes": "set to the learners, who get all entries and count for nothing",
    "__lastResponseTime": "set for members who are new while this replica leads, and for its disk, which answers",
    "__raftLeader": "cleared when this leader steps down",
    "__raftCommitIndex": "set to the last entry before a leader's own term, once a majority has an entry of that term",
    "__setState": "called to step down",
    "__sendAppendEntries": "called when there is something to send, instead of at the next tick",
    "__applyLogEntries": "replaced: committed entries are applied by the replica",
    "_applyCommand": "called to propose: it puts a command into a queue",
    "_checkCommandsToApply": "called to take proposals from that queue at once",
}
"""Names of `SyncObj` that are not a public interface, and why they are used."""

_NOBODY: Final = ReplicaId("", "nobody")
_DISK: Final = ReplicaId("", "disk")

_BATCH_BYTES: Final = 1 << 62
"""Maximum size of a batch in bytes. It is never reached: the journal shows no more than one message may carry."""


class State(IntEnum):
    """Role of `SyncObj` in its term, with PySyncObj's numbers."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class _Peer(Node):  # type: ignore[misc] # PySyncObj has no types
    """A node whose hash, and so its place in a set, is the same in every process."""

    def __init__(self, replica: ReplicaId) -> None:
        super().__init__(replica)
        self._hash = crc32(f"{replica.node_id}#{replica.incarnation}".encode())

    def __hash__(self) -> int:
        return self._hash


class _Links(Transport):  # type: ignore[misc]
    """Transport that sends nothing itself."""

    def __init__(self, on_message: Callable[[ReplicaId, LibraryMessage], None]) -> None:
        super().__init__(None, None, [])
        self._on_message = on_message

    def send(self, node: Node, message: LibraryMessage) -> bool:
        """Hand a message over to the engine, unless a placeholder is its receiver."""
        if node.id not in (_NOBODY, _DISK):
            self._on_message(node.id, message)
        return True


class _NoPoller:
    def poll(self, _timeout: float) -> None:
        """Return at once: there is nothing to wait for."""


class _NoDumps:
    """Stand-in for the serializer of dumps. Its state is always 0, "not serializing"."""

    def __init__(self, *_: object) -> None: ...

    def checkSerializing(self) -> tuple[int, int]:  # noqa: N802 -- PySyncObj's name
        return 0, 0

    def getTransmissionData(self, _node: object) -> None:  # noqa: N802 -- PySyncObj's name
        return None

    def cancelTransmisstion(self, _node: object) -> None:  # noqa: N802 -- PySyncObj's name
        return None


def private_module() -> ModuleType:
    """Return a copy of `pysyncobj.syncobj` that no other code uses."""
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    invariant(spec is not None and spec.loader is not None, "PySyncObj has its module")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in REPLACED:
        invariant(not hasattr(module, name), "the copy is empty", name=name)
    spec.loader.exec_module(module)
    return module


class Library:
    """The engine's interface to a `SyncObj`. Indexes are the project's, and `ReplicaId`s name nodes.

    `now` is the clock of `SyncObj`. It must be set before every call.
    """

    def __init__(
        self,
        me: ReplicaId,
        journal: LogJournal,
        settings: RaftSettings,
        random: Random,
        now: float,
        on_message: Callable[[ReplicaId, LibraryMessage], None],
        state_changed: Callable[[State], None],
    ) -> None:
        """Make a `SyncObj`. During calls `on_message` takes its messages to others, `state_changed` its new state."""
        self.now = now
        self.first_countable = 0
        """Index of the first entry of this leader's own term, 0 for a follower.

        Only acknowledgements of this entry and later ones are counted.
        """
        self._journal = journal
        self._on_message = on_message
        self._answers: list[LibraryMessage] = []
        self._nodes: dict[ReplicaId, _Peer] = {}
        self._connected: set[ReplicaId] = set()
        self._links = _Links(self._on_send)
        module = private_module()
        module.__dict__.update(
            monotonicTime=self._clock,
            random=random,
            createJournal=lambda _name: journal,
            createPoller=lambda _kind: _NoPoller(),
            Serializer=_NoDumps,
        )
        # `SyncObj` requires a maximum timeout above the minimum, and three heartbeats within the minimum. The settings
        # may be closer together.
        longest = max(settings.election_max_s, settings.election_min_s * 1.01)
        conf = SyncObjConf(
            autoTick=False,
            journalFile=str(me),
            raftMinTimeout=settings.election_min_s,
            raftMaxTimeout=longest,
            appendEntriesPeriod=min(settings.heartbeat_s, settings.election_min_s / 4),
            leaderFallbackTimeout=settings.election_max_s,
            connectionTimeout=longest,
            appendEntriesBatchSizeBytes=_BATCH_BYTES,
            commandsQueueSize=0,
            dynamicMembershipChange=False,
            useFork=False,
            logCompactionMinEntries=1 << 62,
            logCompactionMinTime=1 << 62,
            onStateChanged=lambda _before, after: state_changed(State(after)),
        )
        self._sync_obj: Any = _without_applying(module)(self._node(me), [], conf=conf, transport=self._links)
        self.set_members(me, journal.table.membership)

    def _on_send(self, to: ReplicaId, message: LibraryMessage) -> None:
        if message["type"] in ("request_vote", "append_entries"):
            self._on_message(to, message)
        else:
            self._answers.append(message)

    def _clock(self) -> float:
        return self.now

    def _node(self, replica: ReplicaId) -> _Peer:
        node = self._nodes.get(replica)
        if node is None:
            node = self._nodes[replica] = _Peer(replica)
        return node

    # ---------------------------------------------------------------- the state of `SyncObj`

    @property
    def term(self) -> int:
        term: int = self._sync_obj.raftCurrentTerm
        return term

    @property
    def commit_index(self) -> int:
        """Index up to which `SyncObj` considers the log committed."""
        index: int = self._sync_obj.raftCommitIndex
        return index - OFFSET

    @property
    def election_is_due(self) -> bool:
        """True if `SyncObj` would campaign at its next tick."""
        deadline: float = self._sync_obj._SyncObj__raftElectionDeadline
        return deadline < self.now

    # ---------------------------------------------------------------- time and messages

    def tick(self) -> None:
        """Have `SyncObj` count acknowledgements, campaign if that is due, and check that a majority answers."""
        library, disk = self._sync_obj, self._node(_DISK)
        if disk in library._SyncObj__otherNodes:
            self.set_match(_DISK, self._journal.durable_index)
            library._SyncObj__lastResponseTime[disk] = self.now
        self._commit_earlier_terms()
        self._sync_obj.doTick(0.0)

    def _commit_earlier_terms(self) -> None:
        """Commit all entries of earlier terms at once, when a majority has an entry of the leader's own term.

        `SyncObj` would take microseconds for each entry. After a power loss of all nodes there may be hundreds of
        thousands of entries. A leader that is silent for so long is deposed by another leader, which then has as many
        to commit.
        """
        library, first = self._sync_obj, self.first_countable + OFFSET
        if library._SyncObj__raftCommitIndex >= first - 1:
            return
        others = library._SyncObj__otherNodes
        count = 1 + sum(library._SyncObj__raftMatchIndex[node] >= first for node in others)
        if count > (len(others) + 1) / 2:
            library._SyncObj__raftCommitIndex = first - 1

    def postpone_election(self, delay_s: float) -> None:
        """Let `SyncObj` campaign in `delay_s` seconds at the earliest."""
        self._sync_obj._SyncObj__raftElectionDeadline = self.now + delay_s

    def campaign(self) -> None:
        """Start an election in the next term. `SyncObj` refuses without a peer, so a placeholder is connected."""
        self._sync_obj._SyncObj__raftElectionDeadline = float("-inf")
        self.connect(_NOBODY)
        self.tick()
        self.disconnect(_NOBODY)

    def _receive(self, sender: ReplicaId, **fields: object) -> list[LibraryMessage]:
        """Pass a message to `SyncObj`, and return its answers."""
        self._answers = []
        self._links._onMessageReceived(self._node(sender), fields)
        return self._answers

    def count_vote(self, voter: ReplicaId) -> None:
        """Have `SyncObj` count a voter's vote in this term."""
        self._receive(voter, type="response_vote", term=self.term)

    def own_vote_saved(self) -> None:
        """Count this replica's own vote, which is durable now, if this replica is a voter."""
        if self._node(_DISK) in self._sync_obj._SyncObj__otherNodes:
            self.count_vote(_DISK)

    def vote(self, candidate: ReplicaId, term: int, last_index: int, last_term: int) -> bool:
        """Have `SyncObj` decide on the vote for a candidate, and return whether the vote was given."""
        answers = self._receive(
            candidate, type="request_vote", term=term, last_log_index=last_index + OFFSET, last_log_term=last_term
        )
        return bool(answers)

    def adopt(self, term: int, sender: ReplicaId) -> None:
        """Have `SyncObj` follow in a later term, as it does for a candidate with too short a log: without a vote."""
        self._receive(sender, type="request_vote", term=term, last_log_term=-1, last_log_index=-1)

    def append(
        self, leader: ReplicaId, prev_index: int, prev_term: int, metas: Iterable[EntryMeta], commit_index: int
    ) -> bool:
        """Pass entries of this term's leader to `SyncObj`, and return whether they joined its log."""
        entries = [(meta, meta.index + OFFSET, meta.term) for meta in metas]
        answers = self._receive(
            leader,
            type="append_entries",
            term=self.term,
            prevLogIdx=prev_index + OFFSET,
            prevLogTerm=prev_term,
            entries=entries,
            commit_index=commit_index + OFFSET,
        )
        return bool(answers[-1]["success"])

    def connect(self, peer: ReplicaId) -> None:
        """Allow `SyncObj` to send entries to a peer."""
        if peer not in self._connected:
            self._connected.add(peer)
            self._links._onNodeConnected(self._node(peer))

    def disconnect(self, peer: ReplicaId) -> None:
        """Stop `SyncObj` from sending entries to a peer, even while it is sending."""
        if peer in self._connected:
            self._connected.remove(peer)
            self._links._onNodeDisconnected(self._node(peer))

    def set_members(self, me: ReplicaId, membership: Membership) -> None:
        """Set voters and learners, and allow `SyncObj` to send to all of them."""
        placeholders = (_DISK, _NOBODY) if me in membership.voters else (_NOBODY,)
        voters = {self._node(voter) for voter in (*membership.voters, *placeholders) if voter != me}
        learners = {self._node(learner) for learner in membership.learners if learner != me}
        library = self._sync_obj
        for values, initial in (
            (library._SyncObj__raftNextIndex, 0),
            (library._SyncObj__raftMatchIndex, 0),
            (library._SyncObj__lastResponseTime, self.now),
        ):
            for removed in set(values) - voters - learners:
                del values[removed]
            for peer in (voters | learners) - set(values):
                values[peer] = initial
        library._SyncObj__otherNodes, library._SyncObj__readonlyNodes = voters, learners
        for member in membership.members:
            if member != me:
                self.connect(member)

    # ---------------------------------------------------------------- leading

    def propose(self, metas: Iterable[EntryMeta]) -> None:
        """Have `SyncObj` append entries, in their order."""
        for meta in metas:
            self._sync_obj._applyCommand(meta, None)
        self._sync_obj._checkCommandsToApply()

    def send_entries(self) -> None:
        """Have `SyncObj` send the entries that its peers lack."""
        self._sync_obj._SyncObj__sendAppendEntries()

    def set_next(self, peer: ReplicaId, index: int) -> None:
        """Set the entry with which sending to a peer continues."""
        self._sync_obj._SyncObj__raftNextIndex[self._node(peer)] = index + OFFSET

    def set_match(self, peer: ReplicaId, index: int) -> None:
        """Count a peer for the entries up to `index`.

        A peer without an entry of the leader's own term is not counted, because it helps to commit no entry. Otherwise
        `SyncObj` would go through every uncommitted entry of earlier terms whenever it counts. After a start these may
        be all entries since a snapshot.
        """
        counted = index + OFFSET if index >= self.first_countable else 0
        self._sync_obj._SyncObj__raftMatchIndex[self._node(peer)] = counted

    def note_contact(self, peer: ReplicaId) -> None:
        """Note that a peer has answered, so that `SyncObj` counts it as reachable."""
        self._receive(peer, type="next_node_idx", next_node_idx=0, reset=False, success=False)

    def step_down(self) -> None:
        """Give up leadership, in the same term."""
        self._sync_obj._SyncObj__raftLeader = None
        self._sync_obj._SyncObj__setState(State.FOLLOWER)


def _without_applying(module: ModuleType) -> Any:
    """Return the `SyncObj` class of a module, changed so that it applies no entries: the replica applies them."""
    base: Any = module.SyncObj

    class WithoutApplying(base):  # type: ignore[misc]
        def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 -- the name that Python gives to PySyncObj's own
            return False

    return WithoutApplying
