"""Witness of a whole world: it checks every promise after a step, given the events of the step.

The promises are the invariants of `dledger_sim.log.invariants`, which judges bytes on simulated disks:

- election safety
- leader completeness
- log matching
- state machine safety
- durability on a majority
- acknowledgements that equal the leader's log
- no truncation of committed entries

`driver` judges the promises that concern a single node.
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
    """Raise `Violation` if a promise is broken. Otherwise return the history with the step's additions."""
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
            "a leader holds all entries that were committed in earlier terms",
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
            "a committed entry is on the platters of a majority",
            index=index,
            holders=holders,
            voters=voters.bit_count(),
        )
        committed = (*committed, (*entry, me.term))
    require(seen.last < len(me.log), "a node commits only entries that it holds", index=seen.last, held=len(me.log))
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
    """Return the terms of a log as text. Membership entries have their voters."""
    return "[" + " ".join(f"{term}" if not mask else f"{term}:{_names(mask)}" for term, mask in log) + "]"


def _names(mask: int) -> str:
    return "".join(name for number, name in enumerate(NAMES) if mask >> number & 1)
