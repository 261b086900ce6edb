"""World of the exploration: a few nodes, the messages in flight between them, and the budgets of further steps.

A step is something that a core does by itself (`driver.Move`), or something that happens to a message in flight. The
message is delivered, lost, or delivered and kept as a duplicate. If an equal message is already in flight, a new
message is merged with it. This is the same as losing the new message, or a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

from dledger_sim.log.explore.bounds import CRASHES, DROPS, DUPLICATES, FREE, Bounds
from dledger_sim.log.explore.driver import Move
from dledger_sim.log.explore.state import first_state
from dledger_sim.log.explore.tables import History, Renaming, Result, Tables
from dledger_sim.log.explore.witness import judge
from dledger_sim.log.invariants import Violation

DELIVER, DROP, DUPLICATE = "deliver", "drop", "deliver, and keep a duplicate of,"


class World(NamedTuple):
    """World in numbers of `Tables`. `envelopes` ascend."""

    nodes: tuple[int, ...]
    envelopes: tuple[int, ...]
    history: int
    budgets: tuple[int, ...]


class Step(NamedTuple):
    """Event that happens to a node or to an envelope."""

    node: int
    move: Move | None = None
    envelope: int = -1
    how: str = ""


class BrokenWorld(Exception):  # noqa: N818 - an outcome of a search, not an error of the program
    """A step breaks a promise. `result` has its effects all the same."""

    def __init__(self, step: Step, result: Result, promise: str) -> None:
        super().__init__(step, result, promise)
        self.step = step
        self.result = result
        self.promise = promise


class Worlds:
    """Worlds within some bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.in_flight = bounds.in_flight
        """Maximum number of messages in flight. A script lifts the limit while it plays."""
        self.tables = Tables(bounds)
        self._renamings: dict[tuple[int, ...], tuple[Renaming, ...]] = {}

    def first(self) -> World:
        """Return the world in which no node has done anything."""
        states = (first_state(node, self.bounds.members) for node in range(self.bounds.nodes))
        nodes = tuple(self.tables.nodes.of(state) for state in states)
        history = self.tables.histories.of(History((-1,) * (self.bounds.terms + 1), ()))
        return World(nodes, (), history, self.bounds.budgets)

    def successors(self, world: World) -> Iterator[tuple[Step, World]]:
        """Yield everything that can happen next. Raises `BrokenWorld`."""
        tables, budgets = self.tables, world.budgets
        left = budgets[CRASHES] > 0
        # Any of several urgent nodes may go first: its messages may fill the network, and names of nodes must decide
        # nothing.
        urgent = {place for place, node in enumerate(world.nodes) if tables.is_urgent(node, crashes_left=left)}
        for place, node in enumerate(world.nodes):
            if urgent and place not in urgent:
                continue
            for move in tables.moves(node):
                if urgent and move.name not in ("save", "sync", "crash"):
                    continue
                if move.budget == FREE or budgets[move.budget] > 0:
                    result = tables.step(node, move)
                    if result.node != node or result.sent or result.broken:
                        step = Step(place, move)
                        for after in self._iter_worlds_after(world, step, result, world.envelopes, move.budget):
                            yield step, after
        for at, envelope in enumerate(() if urgent else world.envelopes):
            place = tables.envelopes.values[envelope][1]
            node = world.nodes[place]
            result = tables.step(node, envelope)
            others = world.envelopes[:at] + world.envelopes[at + 1 :]
            step = Step(place, None, envelope, DELIVER)
            for after in self._iter_worlds_after(world, step, result, others, FREE):
                yield step, after
            if budgets[DUPLICATES] and (result.node != node or result.sent):
                step = Step(place, None, envelope, DUPLICATE)
                for after in self._iter_worlds_after(world, step, result, world.envelopes, DUPLICATES):
                    yield step, after
            if budgets[DROPS]:
                yield (
                    Step(place, None, envelope, DROP),
                    world._replace(envelopes=others, budgets=_spend(budgets, DROPS)),
                )

    def _iter_worlds_after(
        self, world: World, step: Step, result: Result, envelopes: tuple[int, ...], budget: int
    ) -> Iterator[World]:
        tables, place = self.tables, step.node
        if result.beyond:
            return
        nodes = (*world.nodes[:place], result.node, *world.nodes[place + 1 :])
        history = world.history
        if result.broken:
            raise BrokenWorld(step, result, result.broken)
        if result.seen:
            try:
                after = judge(tables, nodes, place, result.seen, tables.histories.values[history])
            except Violation as violation:
                raise BrokenWorld(step, result, str(violation)) from violation
            history = tables.histories.of(after)
        budgets = world.budgets if budget == FREE else _spend(world.budgets, budget)
        if not result.sent and result.node == world.nodes[place]:
            yield World(nodes, envelopes, history, budgets)
            return
        for in_flight in self._in_flight(nodes, place, envelopes, result.sent):
            yield World(nodes, in_flight, history, budgets)

    def _in_flight(
        self, nodes: tuple[int, ...], place: int, envelopes: tuple[int, ...], sent: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """Yield the messages in flight after a node's step, without messages that can have no effect any more.

        If there is no room for all new messages, yield every choice of messages that have room.
        """
        tables = self.tables
        values, limit = tables.envelopes.values, self.in_flight
        kept = {
            envelope
            for envelope in envelopes
            if values[envelope][1] != place or not tables.is_dead(nodes[place], envelope)
        }
        fresh = [
            envelope
            for envelope in sent
            if envelope not in kept and not tables.is_dead(nodes[values[envelope][1]], envelope)
        ]
        room = limit - len(kept) if limit else len(fresh)
        if len(fresh) <= room:
            yield tuple(sorted((*kept, *fresh)))
            return
        for chosen in combinations(fresh, max(room, 0)):
            yield tuple(sorted((*kept, *chosen)))

    def canonical_hash(self, world: World) -> int:
        """Return a hash that is equal for worlds that differ only in the names of their nodes."""
        signatures = [*map(self.tables.signatures.__getitem__, world.nodes)]
        places = tuple(map(sorted(signatures).index, signatures))
        renamings = self._renamings.get(places)
        if renamings is None:
            renamings = self._renamings[places] = tuple(_renamings(places))
        if len(renamings) == 1:
            return self._hash(world, renamings[0])
        return min(self._hash(world, renaming) for renaming in renamings)

    def _hash(self, world: World, renaming: Renaming) -> int:
        hashes = self.tables.hashes[renaming]
        nodes = [0] * len(renaming)
        for place, node in zip(renaming, world.nodes, strict=True):
            nodes[place] = hashes.nodes[node]
        envelopes = sum(map(hashes.envelopes.__getitem__, world.envelopes))
        return hash((*nodes, envelopes, hashes.histories[world.history], world.budgets))


def _renamings(places: tuple[int, ...]) -> Iterator[Renaming]:
    """Yield the renamings that sort the nodes. Nodes with equal signatures share a place, that of the first."""
    ordered = sorted(places)
    for renaming in permutations(range(len(places))):
        if all(ordered[renaming[node]] == place for node, place in enumerate(places)):
            yield renaming


def _spend(budgets: tuple[int, ...], budget: int) -> tuple[int, ...]:
    return (*budgets[:budget], budgets[budget] - 1, *budgets[budget + 1 :])
