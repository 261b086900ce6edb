"""Bounds of the exploration."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_base.invariants import invariant

NAMES = "abcdefg"
"""Letters of the nodes: node 0 is `a`, node 1 `b`, … Nodes are numbers everywhere except in printed text."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum number of each thing that may happen from the first state on, and the granularity of steps."""

    nodes: int = 3
    spare: int = 0
    """Number of nodes, out of `nodes`, that are not members at first. Membership steps may add them."""
    terms: int = 2
    """Maximum term for which a node campaigns."""
    entries: int = 2
    """Maximum length of a leader's log, no-ops included, up to which it appends for clients."""
    crashes: int = 0
    drops: int = 0
    duplicates: int = 0
    in_flight: int = 2
    """Maximum number of messages in flight.

    Messages sent into a full network are lost, in every choice. 0 means no limit.
    """
    heartbeats: int = 0
    """Number of heartbeats of leaders, apart from the heartbeat that each sends when elected."""
    resignations: int = 0
    """Number of leaders that step down because no majority answers them."""
    transfers: int = 0
    membership: int = 0
    """Number of membership steps. Each adds or removes a voter."""
    one_entry_messages: bool = False
    """True if an append carries a single entry instead of a run."""
    pre_votes: bool = False
    """True if pre-votes are ordinary messages. Otherwise each is granted at once."""
    prompt_saves: bool = False
    """True if only a crash can come between a change of term or vote and its save."""
    prompt_syncs: bool = False
    """True if only a crash can come between a write to the log and its sync."""
    prompt_syncs_at_last: bool = False
    """True if `prompt_syncs` holds as soon as no crash is left."""

    def __post_init__(self) -> None:
        invariant(1 <= self.nodes <= len(NAMES), "a world has one to seven nodes", nodes=self.nodes)
        invariant(0 <= self.spare < self.nodes, "somebody is a member", spare=self.spare, nodes=self.nodes)

    @property
    def members(self) -> int:
        """First voters, as a mask."""
        return (1 << (self.nodes - self.spare)) - 1

    @property
    def budgets(self) -> tuple[int, ...]:
        """Initial budget of each bounded kind of step, in the order of `BUDGETS`."""
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
"""Budget of steps without their own bound."""
