"""Witness of a whole world: checks that it keeps every promise after a step, given what the step did.

Election safety, leader completeness, log matching, state machine safety, durability on a majority, acknowledgements
that equal the leader's log, no truncation of what is committed: the invariants of `dledger_sim.log.invariants`, which
judges bytes on simulated disks.  What concerns one node alone is judged where it happens, in `driver`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.types import Role
from dledger_sim.log.explore.bounds import NAMES
from dledger_sim.log.explore.driver import Seen
from dledger_sim.log.explore.state import NOBODY, Log, NodeState
from dledger_sim.log.invariants import require

if TYPE_CHECKING:
    from dledger_sim.log.explore.tables import History, Tables


def judge(tables: Tables, nodes: tuple[int, ...], place: int, seen: tuple[Seen, ...], history: History) -> History:
    """Raise `Violation` if a promise is broken, or return the history with what the step adds."""
    states = [tables.nodes.values[node] for node in nodes]
    me = states[place]
    for what in seen:
        if what.what == "log":
            _check_matching(states, place)
        elif what.what == "leader":
            history = _check_leader(me, what.first, history)
        elif what.what == "commit":
            history = _check_commit(states, me, what, history)
        elif what.what == "truncate":
            _check_truncation(me, what, history)
        else:
            _check_acknowledgement(states, me, what, history)
    return history


def _check_matching(states: list[NodeState], place: int) -> None:
    log = states[place].log
    for other in states:
        if other.log is log or other.me == place:
            continue
        for index in range(min(len(log), len(other.log)) - 1, -1, -1):
            if log[index] == other.log[index]:
                require(
                    log[:index] == other.log[:index],
                    "logs with an entry of the same index and term are equal up to it",
                    index=index,
                    **{NAMES[place]: show(log), NAMES[other.me]: show(other.log)},
                )
                break


def _check_leader(me: NodeState, term: int, history: History) -> History:
    leader = history.leaders[term]
    require(leader in (NOBODY, me.me), "one leader a term", term=term, first=NAMES[leader], second=NAMES[me.me])
    for index, (entry_term, mask, committed_in) in enumerate(history.committed):
        held = me.log[index] if index < len(me.log) else None
        require(
            committed_in >= term or held == (entry_term, mask),
            "a leader holds what was committed in earlier terms",
            leader=NAMES[me.me],
            term=term,
            index=index,
            committed_with_term=entry_term,
            held=held and held[0],
        )
    return history._replace(leaders=(*history.leaders[:term], me.me, *history.leaders[term + 1 :]))


def _check_commit(states: list[NodeState], me: NodeState, seen: Seen, history: History) -> History:
    committed = history.committed
    for index, entry in enumerate(seen.entries, seen.first):
        if index < len(committed):
            require(
                committed[index][:2] == entry,
                "all replicas commit the same entry at an index",
                node=NAMES[me.me],
                index=index,
                term=entry[0],
                committed_with_term=committed[index][0],
            )
            continue
        require(index == len(committed), "entries are committed in order", index=index, known=len(committed))
        prefix = me.log[: index + 1]
        voters = me.voters
        holders = [
            NAMES[state.me]
            for state in states
            if voters >> state.me & 1 and state.platter > index and state.log[: index + 1] == prefix
        ]
        require(
            2 * len(holders) > voters.bit_count(),
            "what is committed lies on the platters of a majority",
            index=index,
            holders=holders,
            voters=voters.bit_count(),
        )
        committed = (*committed, (*entry, me.term))
    require(seen.last < len(me.log), "only entries that are held are committed", index=seen.last, held=len(me.log))
    return history._replace(committed=committed)


def _check_truncation(me: NodeState, seen: Seen, history: History) -> None:
    for index, entry in enumerate(seen.entries, seen.first):
        require(
            index >= len(history.committed) or history.committed[index][:2] != entry,
            "a committed entry is never truncated",
            node=NAMES[me.me],
            index=index,
        )


def _check_acknowledgement(states: list[NodeState], me: NodeState, seen: Seen, history: History) -> None:
    term, match = seen.first, seen.last
    leader = history.leaders[term] if term < len(history.leaders) else NOBODY
    if leader in (NOBODY, me.me):
        return
    other = states[leader]
    if other.role == Role.LEADER and other.term == term:
        require(
            me.log[: match + 1] == other.log[: match + 1],
            "an acknowledged entry equals the leader's",
            node=NAMES[me.me],
            leader=NAMES[leader],
            term=term,
            index=match,
            acknowledged=show(me.log[: match + 1]),
            leads=show(other.log),
        )


def show(log: Log) -> str:
    """A log's terms; a membership entry with its voters."""
    return "[" + " ".join(f"{term}" if not mask else f"{term}:{_names(mask)}" for term, mask in log) + "]"


def _names(mask: int) -> str:
    return "".join(name for number, name in enumerate(NAMES) if mask >> number & 1)
