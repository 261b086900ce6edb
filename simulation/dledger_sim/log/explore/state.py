"""State of a node as plain tuples, and its conversion to the real core and back.

`NodeState` has all values on which a core's decisions depend, except clocks: each step sets them (see `driver`). Values
without an effect are left out, such as the votes of a candidate that has become a follower. So states that behave alike
are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from random import Random
from typing import NamedTuple

import msgspec

from dledger.consensus.engine import RaftSettings
from dledger.consensus.messages import Message as AnyMessage
from dledger.consensus.peers import Mode
from dledger.core.log_table import LogTable
from dledger.core.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from dledger.core.progress import Progress
from dledger.core.raft import Raft
from dledger.types import EntryKind, EntryMeta, HardState, Membership, ReplicaId, Role
from dledger_base.invariants import invariant
from dledger_sim.log.explore.bounds import NAMES

ENTRY_BYTES = 48
NOBODY = -1

REPLICAS = tuple(ReplicaId(name, "first") for name in NAMES)
NUMBERS = {replica: number for number, replica in enumerate(REPLICAS)}
MESSAGE_TYPES: tuple[type[Message], ...] = (
    VoteRequest,
    VoteReply,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
)
VOTE_REQUEST, VOTE_REPLY, APPEND, APPEND_REPLY, HEARTBEAT, HEARTBEAT_REPLY, TIMEOUT_NOW = range(len(MESSAGE_TYPES))
_MAKE: tuple[Callable[..., Message], ...] = MESSAGE_TYPES
KINDS: dict[type, int] = {kind: number for number, kind in enumerate(MESSAGE_TYPES)}

Entry = tuple[int, int]
"""(term, voters of a membership entry as a mask, or 0).

A leader proposes one entry at an index of its term, so term and index identify an entry.
"""
Log = tuple[Entry, ...]
Fields = tuple[int, ...]
Envelope = tuple[int, int, int, Fields, Log]
"""(sender, receiver, kind, the message's fields, the entries it carries)."""
Held = tuple[int, int, Envelope]
"""(saves to wait for, late, the envelope).

`late` is 1 if the entries are read from the log when the message leaves. It is 2 (`driver.CATCH_UP`) for a message that
brings a peer up to date, else 0.
"""
PeerState = tuple[int, int, int, int, int, tuple[tuple[int, int], ...], bool, bool]
"""(peer, match, verified, next, mode, in flight, catching up, probe sent)."""


class NodeState(NamedTuple):
    """State of a core and its driver. `-1` means no node or no index."""

    me: int
    members: int
    """First voters, as a mask."""
    term: int
    vote: int
    role: int
    leader: int
    log: Log
    durable: int
    """Last index that the core believes to be durable."""
    commit: int
    verified: int
    window_first: int
    """First index whose entry size the core knows. It sends entries from there on from memory."""
    may_vote: bool
    unsaved: bool
    votes: int
    term_start: int
    transfer_to: int
    progress: tuple[PeerState, ...]
    platter: int
    """Number of entries that survive a crash for certain."""
    saved: tuple[int, int]
    """Term and vote that survive a crash for certain."""
    saves: tuple[tuple[int, int], ...]
    """Terms and votes on their way to the disk, in order."""
    held: tuple[Held, ...]
    """Messages that wait for the saves."""
    sync: int
    """Last index that the running sync covers, or -1 if none runs."""
    sync_stale: bool
    """True if the log was truncated since the sync began."""

    @property
    def voters(self) -> int:
        """Membership in force, as a mask."""
        return next((mask for _, mask in reversed(self.log) if mask), self.members)


def first_state(me: int, members: int) -> NodeState:
    """Return the state of a node that has never done anything."""
    return NodeState(
        me, members, 0, NOBODY, int(Role.FOLLOWER), NOBODY, (), -1, -1, -1, 0,
        may_vote=True, unsaved=False, votes=0, term_start=-1, transfer_to=NOBODY, progress=(),
        platter=0, saved=(0, NOBODY), saves=(), held=(), sync=-1, sync_stale=False,
    )  # fmt: skip


@cache
def membership(mask: int) -> Membership:
    """Return the membership with the voters of a mask."""
    return Membership(tuple(replica for number, replica in enumerate(REPLICAS) if mask >> number & 1))


@cache
def meta(index: int, entry: Entry) -> EntryMeta:
    """Return an entry's metadata as the core knows it."""
    term, mask = entry
    kind = EntryKind.MEMBERSHIP if mask else EntryKind.GROUP
    voters = membership(mask) if mask else None
    return EntryMeta(index, term, index * ENTRY_BYTES, ENTRY_BYTES, kind, membership=voters)


def mask_of(replicas: Membership | set[ReplicaId]) -> int:
    """Return the mask of a membership's voters, or of a set of replicas."""
    voters = replicas.voters if isinstance(replicas, Membership) else replicas
    return sum(1 << NUMBERS[replica] for replica in voters)


def pack(sender: int, to: int, message: AnyMessage, entries: Log = ()) -> Envelope:
    """Return a message in the form in which a state holds it."""
    assert isinstance(message, msgspec.Struct)
    return sender, to, KINDS[type(message)], msgspec.structs.astuple(message), entries


def unpack(envelope: Envelope) -> Message:
    """Return the message of an envelope."""
    return _MAKE[envelope[2]](*envelope[3])


class _NoRandom(Random):
    """Source without randomness. The exploration has a separate step for the expiry of a timer."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def _log_table(state: NodeState, window_first: int) -> LogTable:
    log = state.log
    changes = [(0, log[0])] if log else []
    changes += [(at, after) for at, (before, after) in enumerate(pairwise(log), 1) if before[0] != after[0]]
    table = LogTable(
        runs=[(at, entry[0]) for at, entry in changes],
        last_index=len(log) - 1,
        base_membership=membership(state.members),
        memberships=[meta(index, entry) for index, entry in enumerate(log) if entry[1]],
    )
    recent: deque[EntryMeta] = vars(table)["_recent"]
    recent.extend(meta(index, log[index]) for index in range(window_first, len(log)))
    return table


def start(state: NodeState, settings: RaftSettings) -> Raft:
    """Return a core as a process starts it, from the contents of its disk."""
    last = len(state.log) - 1
    vote = None if state.saved[1] == NOBODY else REPLICAS[state.saved[1]]
    return Raft(
        REPLICAS[state.me],
        _log_table(state, len(state.log)),
        HardState(state.saved[0], vote),
        durable_index=last,
        commit_index=-1,
        settings=settings,
        random=_NoRandom(),
        now=0.0,
    )


def put_together(state: NodeState, settings: RaftSettings) -> Raft:
    """Return a core with this state. Its clock is at 0 and no timer is due."""
    raft = start(state._replace(saved=(state.term, state.vote)), settings)
    vars(raft).update(
        term=state.term,
        durable_index=state.durable,
        commit_index=state.commit,
        verified_index=state.verified,
        role=Role(state.role),
        leader=None if state.leader == NOBODY else REPLICAS[state.leader],
        may_vote=state.may_vote,
        term_start=state.term_start,
        transfer_to=None if state.transfer_to == NOBODY else REPLICAS[state.transfer_to],
        table=_log_table(state, state.window_first),
        progress={REPLICAS[peer[0]]: _progress(peer) for peer in state.progress},
        _votes={replica for number, replica in enumerate(REPLICAS) if state.votes >> number & 1},
        _unsaved=state.unsaved,
        _effects=[],
        _heartbeat_at=float("inf"),
        _nudge_at=float("inf"),
        _transfer_deadline=float("inf"),
        _election_deadline=float("inf"),
    )
    return raft


def _progress(peer: PeerState) -> Progress:
    _, match, verified, following, mode, in_flight, catching_up, probe_sent = peer
    progress = Progress(following, 0.0)
    progress.match_index = match
    progress.verified_index = verified
    progress.mode = Mode(mode)
    progress.in_flight.extend(in_flight)
    progress.in_flight_bytes = sum(size for _, size in in_flight)
    progress.catching_up = catching_up
    progress.probe_sent = probe_sent
    progress.contact_at = float("-inf")
    return progress


def take_apart(raft: Raft, before: NodeState, log: Log) -> NodeState:
    """Return `before` with the core's present state and the log. The other values of the driver stay."""
    private = vars(raft)
    role = raft.role
    counting = role in (Role.CANDIDATE, Role.PRE_CANDIDATE)
    progress = tuple(
        (
            NUMBERS[peer],
            each.match_index,
            each.verified_index,
            each.next_index,
            int(each.mode),
            tuple(each.in_flight),
            each.catching_up,
            each.probe_sent,
        )
        for peer, each in sorted(raft.progress.items())
    )
    return before._replace(
        term=raft.term,
        vote=NOBODY if raft.vote is None else NUMBERS[raft.vote],
        role=int(role),
        leader=NOBODY if raft.leader is None else NUMBERS[raft.leader],
        log=log,
        durable=raft.durable_index,
        commit=raft.commit_index,
        verified=raft.verified_index,
        window_first=raft.table.window_first,
        may_vote=raft.may_vote,
        unsaved=private["_unsaved"],
        votes=mask_of(private["_votes"]) if counting else 0,
        term_start=raft.term_start if role is Role.LEADER else -1,
        transfer_to=NOBODY if raft.transfer_to is None else NUMBERS[raft.transfer_to],
        progress=progress,
    )


KNOWN = frozenset((
    "me", "table", "term", "vote", "durable_index", "commit_index", "verified_index", "generation", "role", "leader",
    "progress", "term_start", "transfer_to", "was_asked_to_lead", "may_vote", "disk_used", "wall_ms", "healthy",
    "first_position", "_settings", "_random", "_votes", "_transfer_deadline", "_leader_heard_at", "_heartbeat_at",
    "_nudge_at", "_last_tick", "_round", "_reads", "_unsaved", "_effects", "_after_sync", "_election_deadline",
))  # fmt: skip
"""Names of all attributes of a core.

`NodeState` keeps each of them, unless steps set it (clocks), it is constant here (no reads, no disks), or the core only
tells it (`was_asked_to_lead`).
"""


def check_the_core_is_known() -> None:
    """Raise if a core has an attribute that a `NodeState` would lose."""
    raft = start(first_state(0, 1), RaftSettings())
    invariant(vars(raft).keys() == KNOWN, "the explorer knows a core's attributes", differ=vars(raft).keys() ^ KNOWN)
