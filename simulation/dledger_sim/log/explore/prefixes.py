"""Scripted beginnings, for states too deep to be reached from the first state.

A script is a list of steps that any exploration could take. The exploration begins in the state at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

from dledger.types import Role
from dledger_base.invariants import invariant
from dledger_sim.log.explore.bounds import BUDGETS, NAMES, Bounds
from dledger_sim.log.explore.state import APPEND, APPEND_REPLY, VOTE_REPLY, VOTE_REQUEST, NodeState
from dledger_sim.log.explore.world import DELIVER, Step, World, Worlds


class Script:
    """Script that takes chosen steps in a world. These steps count for no bound.

    Names are nodes' letters; kinds are numbers of `state.MESSAGE_TYPES`.
    """

    def __init__(self, worlds: Worlds) -> None:
        self.world = worlds.first()._replace(budgets=(1,) * len(BUDGETS))
        self.steps: list[tuple[Step, World]] = []
        self._worlds = worlds

    @classmethod
    def played(cls, worlds: Worlds, prefix: str) -> Self:
        """Return the script named `prefix` after its steps, or an empty script."""
        script = cls(worlds)
        if prefix:
            worlds.in_flight = 0
            PREFIXES[prefix].play(script)
            worlds.in_flight = worlds.bounds.in_flight
        script.world = script.world._replace(budgets=worlds.bounds.budgets)
        return script

    def move(self, name: str, move: str) -> None:
        """Let a node take a step by itself."""
        self._take_step(lambda step: step.move is not None and (NAMES[step.node], step.move.name) == (name, move))

    def deliver(self, sender: str, to: str, kind: int) -> None:
        """Deliver the oldest message of a kind between two nodes, and make the receiver's writes durable."""
        values = self._worlds.tables.envelopes.values

        def wanted(step: Step) -> bool:
            if step.how != DELIVER:
                return False
            found = values[step.envelope]
            return (NAMES[found[0]], NAMES[found[1]], found[2]) == (sender, to, kind)

        self._take_step(wanted)
        self.settle_disks()

    def drop_all(self, but: tuple[str, str] | None = None) -> None:
        """Lose all messages in flight, except those from one node to another."""
        values = self._worlds.tables.envelopes.values
        kept = (
            envelope
            for envelope in self.world.envelopes
            if (NAMES[values[envelope][0]], NAMES[values[envelope][1]]) == but
        )
        self.world = self.world._replace(envelopes=tuple(kept))

    def settle_disks(self) -> None:
        """Complete all saves and syncs."""
        while any(name in ("save", "sync") for name in self._list_moves()):
            self._take_step(lambda step: step.move is not None and step.move.name in ("save", "sync"))

    def elect(self, term: int, name: str, *voters: str) -> None:
        """Let a node campaign until it reaches `term`, and be elected by `voters`. Only its messages are in flight."""
        while self._state(name).term < term:
            self.drop_all()
            self.move(name, "time out")
            self.settle_disks()
        for voter in voters:
            self.deliver(name, voter, VOTE_REQUEST)
            self.deliver(voter, name, VOTE_REPLY)
        self.settle_disks()
        invariant(self._state(name).role == Role.LEADER, "the candidate of a script wins", name=name)

    def replicate(self, leader: str, *followers: str) -> None:
        """Let each follower take one append with entries, after the probe that comes first in a term."""
        for follower in followers:
            while self._is_in_flight(leader, follower, APPEND):
                self.deliver(leader, follower, APPEND)
                if self._is_in_flight(follower, leader, APPEND_REPLY):
                    self.deliver(follower, leader, APPEND_REPLY)

    def _state(self, name: str) -> NodeState:
        return self._worlds.tables.nodes.values[self.world.nodes[NAMES.index(name)]]

    def _is_in_flight(self, sender: str, to: str, kind: int) -> bool:
        found = (self._worlds.tables.envelopes.values[envelope] for envelope in self.world.envelopes)
        return any((NAMES[each[0]], NAMES[each[1]], each[2]) == (sender, to, kind) for each in found)

    def _list_moves(self) -> list[str]:
        return [step.move.name for step, _ in self._worlds.successors(self.world) if step.move is not None]

    def _take_step(self, wanted: Callable[[Step], bool]) -> None:
        found = next(((step, world) for step, world in self._worlds.successors(self.world) if wanted(step)), None)
        invariant(found is not None, "a script takes steps that are possible")
        if found is not None:
            self.steps.append(found)
            self.world = found[1]


class Prefix:
    """Script with the bounds within which its final state is worth exploring."""

    def __init__(self, bounds: Bounds, play: Callable[[Script], None]) -> None:
        self.bounds = bounds
        self.play = play


def _figure_8(script: Script) -> None:
    """Play parts (a) to (c) of the Raft paper's figure 8, up to the moment at which s1 leads again.

    `a` (s1) leads term 1 and appends an entry that only `b` (s2) gets. `e` (s5) leads term 2 with the votes of `c` and
    `d`; its own entry reaches no other node. `a` restarts and leads term 3 with the votes of `b` and `c`. It has heard
    that `b` holds the entry of term 1, and has sent the entry to `c`. Only the acknowledgement of `c` is in flight. `e`
    has campaigned without success.
    """
    script.elect(1, "a", "b", "c")
    script.replicate("a", "b")
    script.elect(2, "e", "c", "d")
    script.move("a", "crash")
    script.settle_disks()
    script.elect(3, "a", "b", "c")
    script.deliver("a", "b", APPEND)
    script.deliver("b", "a", APPEND_REPLY)
    for _ in range(2):
        script.deliver("a", "c", APPEND)
        script.deliver("c", "a", APPEND_REPLY)
    script.deliver("a", "c", APPEND)
    script.move("e", "resign")
    script.move("e", "time out")
    script.settle_disks()
    script.drop_all(but=("c", "a"))


def _stale_acknowledgement(script: Script) -> None:
    """Play up to the point where `b` holds entries of term 1, and has heard nothing of `c`, the leader of term 2.

    `a` leads term 1 and gives its entries to `b` alone. `c` leads term 2 with the votes of `d` and `e`, and `d` has its
    entries. `b` acknowledges its entries to the next leader that it hears of.
    """
    script.elect(1, "a", "b", "c")
    script.move("a", "append")
    script.settle_disks()
    script.replicate("a", "b")
    script.elect(2, "c", "d", "e")
    script.move("c", "append")
    script.settle_disks()
    script.replicate("c", "d")
    script.drop_all()


_FIVE = Bounds(nodes=5, entries=0, in_flight=3, one_entry_messages=True, prompt_saves=True, prompt_syncs=True)

PREFIXES = {
    "figure8": Prefix(replace(_FIVE, terms=4), _figure_8),
    "stale-ack": Prefix(replace(_FIVE, terms=2, entries=2, heartbeats=1), _stale_acknowledgement),
}
"""Prefixes by name, for `--prefix`."""
