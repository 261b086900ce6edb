"""One replica's `SyncObj`, with a clock, a log and links of ours in the places of its own.

What stock PySyncObj 0.3.17 does, and what stands in its place here:

- Its journal file is never synced, and may lose term and vote with what it acknowledged.  `SyncObj` asks the journal
  that it is given (`dledger.engines.pysyncobj.journal`), and what that is told becomes effects.
- It sends pickles, and runs what a pickle holds.  It is given a transport that hands its messages, as plain values, to
  the engine, which says them in messages of ours; entries never pass through it.
- It counts every vote that arrives, and one that arrives twice twice; it counts its own vote and, as a leader, its own
  log, whether they are on the disk or not.  The engine passes a vote on once.  And it has two members more, see below.
- It counts as acknowledged what a follower has written.  The engine tells it what is durable there.
- It cuts a follower's log at whatever an append joins, even where that is older than what is there.  The engine passes
  on only what is not there yet.
- A follower commits as far as its log goes, be it another leader's.  The engine tells it of commits only up to what
  this term's leader has verified.
- It dumps its state by a log position of its own, in a file that is not synced.  There are no dumps: snapshots are the
  replica's.

This replica counts for nothing but what is on its disk.  `SyncObj` counts itself in every case, so one of its members
is nobody, who never answers: with it, one more of the others is needed for a majority.  Another one is this replica's
disk, which gives its vote once that is saved, and acknowledges what is synced.  Of n voters `SyncObj` then sees n - 1
and two more:

    1 + disk + others > (n + 1 + 1) / 2     means     disk + others > n / 2

Where this replica is no voter, there is no disk among the members, and the same holds without it.

`SyncObj` reads clock and randomness from names of its module.  Each replica therefore has a copy of that module to
itself, in which these names are its own; the module that others import stays as it is.

`INTERNALS` names all of it that is no public interface.  A test fails once one of them is missing or means another
thing: see `tests/dledger/engines/test_pysyncobj_internals.py`.
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

from dledger.consensus.settings import RaftSettings
from dledger.engines.pysyncobj.journal import OFFSET, LogJournal
from dledger.invariants import invariant
from dledger.types import EntryMeta, Membership, ReplicaId

Said = Mapping[str, Any]
"""A message of `SyncObj`, by its own names of fields."""

REPLACED: Final = {
    "monotonicTime": "time is what calls bring, so that it stands still while the process does, and can be simulated",
    "random": "a run of the simulator is repeated from its seed",
    "createJournal": "the log is the store's",
    "createPoller": "there are no sockets to wait for",
    "Serializer": "there are no dumps",
}
"""Names of the module `pysyncobj.syncobj` whose values are ours, and why."""

INTERNALS: Final = {
    "__raftElectionDeadline": "read before a tick: a pre-vote goes first; set when one is won, or leadership is lost",
    "__raftNextIndex": "set where entries are sent in windows, and read back from files",
    "__raftMatchIndex": "set to what is durable both there and here, and lowered when a follower has lost something",
    "__otherNodes": "set to the voters: they change by entries of the log, with a number of entries at a time",
    "__readonlyNodes": "set to the learners, who get all entries and count for nothing",
    "__lastResponseTime": "begun for members who are new while this replica leads; its disk always answers",
    "__raftLeader": "set when leadership is laid down",
    "__raftCommitIndex": "set to what lies before a leader's own term once a majority has an entry of that",
    "__setState": "called to lay leadership down",
    "__sendAppendEntries": "called when there is something to send, instead of at the next tick",
    "__applyLogEntries": "replaced: committed entries are applied by the replica",
    "_applyCommand": "called to propose: it puts a command into a queue",
    "_checkCommandsToApply": "called to take proposals from that queue at once",
}
"""Names of `SyncObj` that are no public interface, and why they are used."""

_NOBODY: Final = ReplicaId("", "nobody")
_DISK: Final = ReplicaId("", "disk")

_BATCH_BYTES: Final = 1 << 62
"""`SyncObj` cuts no batches: the journal shows it as much at a time as one message may bring."""


class State(IntEnum):
    """`SyncObj`'s part in its term, by its own numbers."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class _Peer(Node):  # type: ignore[misc] # PySyncObj has no types
    """A node whose place in a set is the same in every process."""

    def __init__(self, replica: ReplicaId) -> None:
        super().__init__(replica)
        self._hash = crc32(f"{replica.node_id}#{replica.incarnation}".encode())

    def __hash__(self) -> int:
        return self._hash


class _Links(Transport):  # type: ignore[misc]
    """Transport that sends nothing itself."""

    def __init__(self, said: Callable[[ReplicaId, Said], None]) -> None:
        super().__init__(None, None, [])
        self._said = said

    def send(self, node: Node, message: Said) -> bool:
        """Hand a message over."""
        if node.id not in (_NOBODY, _DISK):
            self._said(node.id, message)
        return True


class _NoPoller:
    def poll(self, _timeout: float) -> None:
        """Nothing to wait for."""


class _NoDumps:
    """In the place of the serializer of dumps; its state 0 is "not serializing"."""

    def __init__(self, *_: object) -> None: ...

    def checkSerializing(self) -> tuple[int, int]:  # noqa: N802 -- PySyncObj's name
        return 0, 0

    def getTransmissionData(self, _node: object) -> None:  # noqa: N802 -- PySyncObj's name
        return None

    def cancelTransmisstion(self, _node: object) -> None:  # noqa: N802 -- PySyncObj's name
        return None


def private_module() -> ModuleType:
    """A copy of `pysyncobj.syncobj` that nobody else has."""
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
    """A `SyncObj` by what the engine needs of it; indexes are ours, `ReplicaId`s name nodes.

    `now` is its clock: set before every call.
    """

    def __init__(
        self,
        me: ReplicaId,
        journal: LogJournal,
        settings: RaftSettings,
        random: Random,
        now: float,
        said: Callable[[ReplicaId, Said], None],
        state_changed: Callable[[State], None],
    ) -> None:
        """`said` takes what it asks others and sends them, `state_changed` what it has become, both during calls."""
        self.now = now
        self.counts_from = 0
        """While this replica leads: the first entry that commits by being counted, which is of its own term."""
        self._journal = journal
        self._said = said
        self._answers: list[Said] = []
        self._nodes: dict[ReplicaId, _Peer] = {}
        self._connected: set[ReplicaId] = set()
        self._links = _Links(self._sent)
        module = private_module()
        module.__dict__.update(
            monotonicTime=self._clock,
            random=random,
            createJournal=lambda _name: journal,
            createPoller=lambda _kind: _NoPoller(),
            Serializer=_NoDumps,
        )
        # It wants a longest time above the shortest one, and three beats within that; the settings here may be closer.
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
        self._object: Any = _without_applying(module)(self._node(me), [], conf=conf, transport=self._links)
        self.set_members(me, journal.table.membership)

    def _sent(self, to: ReplicaId, message: Said) -> None:
        if message["type"] in ("request_vote", "append_entries"):
            self._said(to, message)
        else:
            self._answers.append(message)

    def _clock(self) -> float:
        return self.now

    def _node(self, replica: ReplicaId) -> _Peer:
        node = self._nodes.get(replica)
        if node is None:
            node = self._nodes[replica] = _Peer(replica)
        return node

    # ---------------------------------------------------------------- what it says of itself

    @property
    def term(self) -> int:
        term: int = self._object.raftCurrentTerm
        return term

    @property
    def commit_index(self) -> int:
        """How far it takes the log for committed."""
        index: int = self._object.raftCommitIndex
        return index - OFFSET

    @property
    def election_is_due(self) -> bool:
        """It would campaign with its next tick."""
        deadline: float = self._object._SyncObj__raftElectionDeadline
        return deadline < self.now

    # ---------------------------------------------------------------- time and messages

    def tick(self) -> None:
        """Let it count acknowledgements, campaign if it is due, and see whether a majority is heard."""
        library, disk = self._object, self._node(_DISK)
        if disk in library._SyncObj__otherNodes:
            self.set_match(_DISK, self._journal.durable_index)
            library._SyncObj__lastResponseTime[disk] = self.now
        self._commit_earlier_terms()
        self._object.doTick(0.0)

    def _commit_earlier_terms(self) -> None:
        """Have it commit all before its leader's own term at once, when a majority has an entry of that.

        It would look at each of them, microseconds apiece: after the loss of all nodes' power that may be hundreds of
        thousands, and a leader that is silent for so long is deposed, by one that has as many.
        """
        library, first = self._object, self.counts_from + OFFSET
        if library._SyncObj__raftCommitIndex >= first - 1:
            return
        others = library._SyncObj__otherNodes
        count = 1 + sum(library._SyncObj__raftMatchIndex[node] >= first for node in others)
        if count > (len(others) + 1) / 2:
            library._SyncObj__raftCommitIndex = first - 1

    def put_off_election(self, by: float) -> None:
        """It is to campaign so many seconds from now at the earliest."""
        self._object._SyncObj__raftElectionDeadline = self.now + by

    def campaign(self) -> None:
        """Begin an election in the next term; it needs a link to somebody, which who is alone has not."""
        self._object._SyncObj__raftElectionDeadline = float("-inf")
        self.connect(_NOBODY)
        self.tick()
        self.disconnect(_NOBODY)

    def _hear(self, sender: ReplicaId, **fields: object) -> list[Said]:
        """Have it take in a message; returns its answers."""
        self._answers = []
        self._links._onMessageReceived(self._node(sender), fields)
        return self._answers

    def count_vote(self, voter: ReplicaId) -> None:
        """It has another one's vote in this term."""
        self._hear(voter, type="response_vote", term=self.term)

    def own_vote_saved(self) -> None:
        """Its own vote is durable; one that is no voter has no disk that counts, and no vote."""
        if self._node(_DISK) in self._object._SyncObj__otherNodes:
            self.count_vote(_DISK)

    def vote(self, candidate: ReplicaId, term: int, last_index: int, last_term: int) -> bool:
        """Have it decide whether to vote for a candidate."""
        answers = self._hear(
            candidate, type="request_vote", term=term, last_log_index=last_index + OFFSET, last_log_term=last_term
        )
        return bool(answers)

    def adopt(self, term: int, sender: ReplicaId) -> None:
        """Have it follow in a later term: of a candidate for whom it cannot vote, it takes the term only."""
        self._hear(sender, type="request_vote", term=term, last_log_term=-1, last_log_index=-1)

    def append(
        self, leader: ReplicaId, prev_index: int, prev_term: int, metas: Iterable[EntryMeta], commit_index: int
    ) -> bool:
        """Have it take entries of this term's leader in; returns whether they joined its log."""
        entries = [(meta, meta.index + OFFSET, meta.term) for meta in metas]
        answers = self._hear(
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
        """It may send entries to a peer."""
        if peer not in self._connected:
            self._connected.add(peer)
            self._links._onNodeConnected(self._node(peer))

    def disconnect(self, peer: ReplicaId) -> None:
        """It is to send no more entries to a peer, even in the midst of sending."""
        if peer in self._connected:
            self._connected.remove(peer)
            self._links._onNodeDisconnected(self._node(peer))

    def set_members(self, me: ReplicaId, membership: Membership) -> None:
        """Who counts, and who gets entries only."""
        own = (_DISK, _NOBODY) if me in membership.voters else (_NOBODY,)
        voters = {self._node(voter) for voter in (*membership.voters, *own) if voter != me}
        learners = {self._node(learner) for learner in membership.learners if learner != me}
        library = self._object
        for known, begun in (
            (library._SyncObj__raftNextIndex, 0),
            (library._SyncObj__raftMatchIndex, 0),
            (library._SyncObj__lastResponseTime, self.now),
        ):
            for gone in set(known) - voters - learners:
                del known[gone]
            for peer in (voters | learners) - set(known):
                known[peer] = begun
        library._SyncObj__otherNodes, library._SyncObj__readonlyNodes = voters, learners
        for member in membership.members:
            if member != me:
                self.connect(member)

    # ---------------------------------------------------------------- leading

    def propose(self, metas: Iterable[EntryMeta]) -> None:
        """Have it append entries, in their order."""
        for meta in metas:
            self._object._applyCommand(meta, None)
        self._object._checkCommandsToApply()

    def send_entries(self) -> None:
        """Have it send what its peers lack."""
        self._object._SyncObj__sendAppendEntries()

    def set_next(self, peer: ReplicaId, index: int) -> None:
        """Go on with an entry when sending to a peer."""
        self._object._SyncObj__raftNextIndex[self._node(peer)] = index + OFFSET

    def set_match(self, peer: ReplicaId, index: int) -> None:
        """Count a peer for the entries up to `index`.

        One that lacks the leader's own term counts for nothing: no entry commits by it, and `SyncObj` would look at
        every uncommitted one of earlier terms whenever it counts.  After a start that may be all since a snapshot.
        """
        self._object._SyncObj__raftMatchIndex[self._node(peer)] = index + OFFSET if index >= self.counts_from else 0

    def heard_of(self, peer: ReplicaId) -> None:
        """A peer has answered: it counts among those who are heard."""
        self._hear(peer, type="next_node_idx", next_node_idx=0, reset=False, success=False)

    def step_down(self) -> None:
        """Lay leadership down, in the same term."""
        self._object._SyncObj__raftLeader = None
        self._object._SyncObj__setState(State.FOLLOWER)


def _without_applying(module: ModuleType) -> Any:
    """`SyncObj` of a copy of its module, for which the replica applies what is committed."""
    base: Any = module.SyncObj

    class Applied(base):  # type: ignore[misc]
        def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 -- the name that Python gives to PySyncObj's own
            return False

    return Applied
