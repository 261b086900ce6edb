"""Consensus engines: what decides the order of entries and when they are committed.

`Engine` is the boundary that `dledger.replica` drives.  Every engine commits an entry at exactly the (term, index,
position) at which it was proposed, or never; it neither moves nor merges entries.  The native engine is
`dledger.core.raft.Raft`.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Protocol

from dledger.core.effects import Output
from dledger.core.log_table import LogTable
from dledger.core.messages import Message
from dledger.core.progress import Progress
from dledger.core.raft import Entries, Raft
from dledger.core.settings import RaftSettings
from dledger.term_runs import TermRuns
from dledger.types import HardState, ReplicaId, Role


class Engine(Protocol):
    """See `dledger.core.raft.Raft` for what each member promises."""

    disk_used: int
    wall_ms: int
    healthy: bool

    @property
    def table(self) -> LogTable: ...
    @property
    def term(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def leader(self) -> ReplicaId | None: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def term_start(self) -> int: ...
    @property
    def may_vote(self) -> bool: ...
    @property
    def transfer_to(self) -> ReplicaId | None: ...
    @property
    def progress(self) -> Mapping[ReplicaId, Progress]: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def is_voter(self) -> bool: ...
    @property
    def own_term_committed(self) -> bool: ...
    @property
    def accepts_proposals(self) -> bool: ...
    @property
    def can_change_membership(self) -> bool: ...
    def take(self) -> Output: ...
    def resign(self, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def step(self, sender: ReplicaId, message: Message, now: float, metas: Entries = (), data: bytes = b"") -> None: ...
    def propose(self, metas: Entries, data: bytes | bytearray, now: float) -> None: ...
    def synced(self, generation: int, index: int, now: float) -> None: ...
    def hard_state_saved(self, state: HardState, now: float) -> None: ...
    def read_index(self, now: float) -> int | None: ...
    def transfer(self, to: ReplicaId, now: float) -> bool: ...
    def broadcast_commit(self, now: float) -> None: ...
    def catch_up_sent(self, to: ReplicaId, term: int, last_index: int, size: int, now: float) -> None: ...
    def snapshot_sent(self, to: ReplicaId, term: int, now: float) -> None: ...
    def peer_connected(self, peer: ReplicaId, now: float) -> None: ...
    def peer_disconnected(self, peer: ReplicaId) -> None: ...
    def repaired(self, first_index: int, next_index: int, memberships: Entries, term_runs: TermRuns) -> None: ...
    def trimmed(self, base_index: int, base_term: int) -> None: ...


class EngineFactory(Protocol):
    """How a replica starts an engine from what its store recovered."""

    def __call__(
        self,
        me: ReplicaId,
        table: LogTable,
        hard_state: HardState,
        *,
        durable_index: int,
        commit_index: int,
        settings: RaftSettings,
        random: Random,
        now: float,
        may_vote: bool,
    ) -> Engine: ...


def native(
    me: ReplicaId,
    table: LogTable,
    hard_state: HardState,
    *,
    durable_index: int,
    commit_index: int,
    settings: RaftSettings,
    random: Random,
    now: float,
    may_vote: bool,
) -> Engine:
    """The default engine."""
    return Raft(
        me,
        table,
        hard_state,
        durable_index=durable_index,
        commit_index=commit_index,
        settings=settings,
        random=random,
        now=now,
        may_vote=may_vote,
    )
