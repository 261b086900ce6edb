"""Tables of the exploration. A step is computed once and looked up afterwards.

That is possible because it depends only on the state of its node, and on the move or envelope. Nodes' states, envelopes
and histories get numbers in the order in which they are found. A world is a few numbers. Hashes cover renamed contents
instead of numbers, so they are equal in every process.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable
from functools import cache
from hashlib import blake2b
from itertools import permutations
from typing import Any, Generic, NamedTuple, TypeVar

from dledger.consensus.engine import RaftSettings
from dledger.types import Role
from dledger_sim.log.explore.bounds import Bounds
from dledger_sim.log.explore.driver import Driver, Move, Seen
from dledger_sim.log.explore.state import (
    APPEND_REPLY,
    HEARTBEAT_REPLY,
    NOBODY,
    TIMEOUT_NOW,
    VOTE_REPLY,
    Envelope,
    Held,
    Log,
    NodeState,
    PeerState,
)

Renaming = tuple[int, ...]
"""Renaming of nodes: node n is called `renaming[n]`."""
Committed = tuple[int, int, int]
"""Committed entry: (term, voters of a membership entry as a bit mask, term of the leader that committed it)."""


class History(NamedTuple):
    """Facts of the past that the invariants need even if no node has them any more."""

    leaders: tuple[int, ...]
    """Leader of each term; -1 without a leader."""
    committed: tuple[Committed, ...]


class Result(NamedTuple):
    """Result of a step, in numbers. `beyond` is true if it leads to a term out of bounds."""

    node: int
    beyond: bool
    sent: tuple[int, ...]
    seen: tuple[Seen, ...]
    broken: str


_T = TypeVar("_T", bound=Hashable)


class Numbers(Generic[_T]):
    """Numbering of values in the order in which they are found."""

    def __init__(self) -> None:
        self.values: list[_T] = []
        self._numbers: dict[_T, int] = {}

    def of(self, value: _T) -> int:
        """Return the number of a value. A new value gets a new number."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Tables:
    """Numbers, steps and hashes for worlds within some bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.nodes: Numbers[NodeState] = Numbers()
        self.envelopes: Numbers[Envelope] = Numbers()
        self.histories: Numbers[History] = Numbers()
        self._terms = bounds.terms
        self._driver = Driver(bounds)
        self._moves: dict[int, tuple[Move, ...]] = {}
        self._urgent: dict[tuple[int, bool], bool] = {}
        self._results: dict[tuple[int, Move | int], Result] = {}
        self.signatures = _Memory(lambda node: _signature(self.nodes.values[node]))
        """Hashes of nodes' states that do not depend on the nodes' names."""
        self.hashes = {renaming: Hashes(self, renaming) for renaming in permutations(range(bounds.nodes))}
        self._dead: dict[tuple[int, int], bool] = {}

    @property
    def settings(self) -> RaftSettings:
        """Settings of the cores."""
        return self._driver.settings

    @property
    def steps(self) -> int:
        """Number of different steps that the real core has taken."""
        return len(self._results)

    def moves(self, node: int) -> tuple[Move, ...]:
        """Return everything that a node may do by itself."""
        moves = self._moves.get(node)
        if moves is None:
            moves = self._moves[node] = self._driver.moves(self.nodes.values[node])
        return moves

    def is_urgent(self, node: int, *, crashes_left: bool) -> bool:
        """Return whether all other steps must wait until this node has saved, synced or crashed."""
        urgent = self._urgent.get((node, crashes_left))
        if urgent is None:
            urgent = self._driver.is_urgent(self.nodes.values[node], crashes_left=crashes_left)
            self._urgent[node, crashes_left] = urgent
        return urgent

    def step(self, node: int, what: Move | int) -> Result:
        """Return the result of a move of a node, or of the delivery of an envelope to it."""
        result = self._results.get((node, what))
        if result is None:
            state = self.nodes.values[node]
            if isinstance(what, Move):
                outcome = self._driver.move(state, what)
            else:
                outcome = self._driver.deliver(state, self.envelopes.values[what])
            sent = tuple(self.envelopes.of(envelope) for envelope in outcome.sent)
            result = Result(
                self.nodes.of(outcome.state), outcome.state.term > self._terms, sent, outcome.seen, outcome.broken
            )
            self._results[node, what] = result
        return result

    def is_dead(self, node: int, envelope: int) -> bool:
        """Return whether a message can have no effect on its receiver any more, in any continuation."""
        dead = self._dead.get((node, envelope))
        if dead is None:
            dead = self._dead[node, envelope] = _is_dead(self.nodes.values[node], self.envelopes.values[envelope])
        return dead


class _Memory(dict[int, int]):
    """Cache that computes each value once."""

    def __init__(self, compute: Callable[[int], int]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, number: int) -> int:
        found = self[number] = self._compute(number)
        return found


class Hashes:
    """Hashes of numbered values under a renaming of the nodes. They are equal in every process."""

    def __init__(self, tables: Tables, renaming: Renaming) -> None:
        nodes, envelopes, histories = tables.nodes.values, tables.envelopes.values, tables.histories.values
        self.nodes = _Memory(lambda number: _digest(tuple(rename_node(nodes[number], renaming))))
        self.envelopes = _Memory(lambda number: _digest(rename_envelope(envelopes[number], renaming)))
        self.histories = _Memory(lambda number: _digest(tuple(rename_history(histories[number], renaming))))


def _digest(value: tuple[Any, ...]) -> int:
    """Return a hash of nested tuples of numbers. It is equal in every process."""
    return int.from_bytes(blake2b(marshal.dumps(value, 2), digest_size=8).digest(), "little") >> 4


def _is_dead(state: NodeState, envelope: Envelope) -> bool:
    kind, fields = envelope[2], envelope[3]
    if kind not in (VOTE_REPLY, APPEND_REPLY, HEARTBEAT_REPLY, TIMEOUT_NOW):
        return False
    term, durable_term = fields[0], state.saved[0]
    if term < durable_term:
        return not (kind == VOTE_REPLY and fields[2])
    if term > durable_term or term != state.term:
        return False
    # A node never becomes candidate or leader of a term that is already on its disk. It can only be one now.
    if kind == VOTE_REPLY:
        return not fields[2] and (state.role != Role.CANDIDATE or not fields[1])
    return kind != TIMEOUT_NOW and state.role != Role.LEADER


# ---------------------------------------------------------------- renaming


def _name(node: int, renaming: Renaming) -> int:
    return node if node == NOBODY else renaming[node]


@cache
def _mask(mask: int, renaming: Renaming) -> int:
    return sum(1 << renaming[node] for node in range(len(renaming)) if mask >> node & 1)


@cache
def _log(log: Log, renaming: Renaming) -> Log:
    return tuple((term, _mask(mask, renaming)) for term, mask in log)


def rename_envelope(envelope: Envelope, renaming: Renaming) -> Envelope:
    """Return the envelope with renamed nodes."""
    sender, to, kind, fields, entries = envelope
    return renaming[sender], renaming[to], kind, fields, _log(entries, renaming)


def rename_history(history: History, renaming: Renaming) -> History:
    """Return the history with renamed nodes."""
    leaders, committed = history
    return History(
        tuple(_name(leader, renaming) for leader in leaders),
        tuple((term, _mask(mask, renaming), by) for term, mask, by in committed),
    )


def _rename_held(held: Held, renaming: Renaming) -> Held:
    saves, late, envelope = held
    return saves, late, rename_envelope(envelope, renaming)


def rename_node(state: NodeState, renaming: Renaming) -> NodeState:
    """Return the state with renamed nodes."""
    peers: list[PeerState] = sorted((renaming[peer[0]], *peer[1:]) for peer in state.progress)
    return state._replace(
        me=renaming[state.me],
        members=_mask(state.members, renaming),
        vote=_name(state.vote, renaming),
        leader=_name(state.leader, renaming),
        log=_log(state.log, renaming),
        votes=_mask(state.votes, renaming),
        transfer_to=_name(state.transfer_to, renaming),
        progress=tuple(peers),
        saved=(state.saved[0], _name(state.saved[1], renaming)),
        saves=tuple((term, _name(vote, renaming)) for term, vote in state.saves),
        held=tuple(sorted(_rename_held(held, renaming) for held in state.held)),
    )


def _signature(state: NodeState) -> int:
    return _digest((
        state.members >> state.me & 1, state.term, state.vote == state.me, state.vote == NOBODY, state.role,
        state.leader == state.me, state.leader == NOBODY, tuple((term, mask.bit_count()) for term, mask in state.log),
        state.durable, state.commit, state.verified, state.window_first, state.may_vote, state.unsaved,
        state.votes.bit_count(), state.platter, state.saved[0], len(state.saves), len(state.held), state.sync,
        tuple(sorted(peer[1:] for peer in state.progress)),
    ))  # fmt: skip
