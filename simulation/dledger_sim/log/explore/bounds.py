"""Bounds of the exploration."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.invariants import invariant

NAMES = "abcdefg"
"""Node 0 is `a`, node 1 `b`, …; nodes are numbers everywhere but in what is printed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most of everything that may happen from the first state on, and how finely it may happen."""

    nodes: int = 3
    spare: int = 0
    """Of `nodes`, how many are no members at first; membership steps may add them."""
    terms: int = 2
    """Nobody campaigns for a higher term."""
    entries: int = 2
    """A leader appends for clients while its log holds fewer entries, no-ops included."""
    crashes: int = 0
    drops: int = 0
    duplicates: int = 0
    in_flight: int = 2
    """Messages in flight; what is sent into a full network is lost, in every choice.  0: no limit."""
    heartbeats: int = 0
    """Heartbeats of leaders, beside the one that each sends when elected."""
    resignations: int = 0
    """Leaders that step down because they hear no majority."""
    transfers: int = 0
    membership: int = 0
    """Membership steps: one voter is added or removed."""
    one_entry_messages: bool = False
    """An append carries one entry, not a run."""
    pre_votes: bool = False
    """Pre-votes are messages like others, instead of granted to whoever asks."""
    prompt_saves: bool = False
    """Nothing but a crash comes between a change of term or vote and its save."""
    prompt_syncs: bool = False
    """Nothing but a crash comes between a write to the log and its sync."""
    prompt_syncs_at_last: bool = False
    """The same, but only once no crash is left."""

    def __post_init__(self) -> None:
        invariant(1 <= self.nodes <= len(NAMES), "a world has one to seven nodes", nodes=self.nodes)
        invariant(0 <= self.spare < self.nodes, "somebody is a member", spare=self.spare, nodes=self.nodes)

    @property
    def members(self) -> int:
        """The first voters, as a mask."""
        return (1 << (self.nodes - self.spare)) - 1

    @property
    def budgets(self) -> tuple[int, ...]:
        """What is left of each bounded kind of step at first, in the order of `BUDGETS`."""
        return (
            self.crashes,
            self.drops,
            self.duplicates,
            self.heartbeats,
            self.resignations,
            self.transfers,
            self.membership,
        )


BUDGETS = ("crashes", "drops", "duplicates", "heartbeats", "resignations", "transfers", "membership")
CRASHES, DROPS, DUPLICATES, HEARTBEATS, RESIGNATIONS, TRANSFERS, MEMBERSHIP = range(len(BUDGETS))
FREE = -1
"""The budget of steps that are not bounded by themselves."""
