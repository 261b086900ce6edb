"""Native engine: the project's own Raft, `dledger.core`."""

from __future__ import annotations

from dledger.consensus.engine import EngineKind, EngineStart
from dledger.core.log_table import LogTable
from dledger.core.messages import CODEC
from dledger.core.raft import Raft
from dledger.types import NATIVE_ENGINE


def start_core(start: EngineStart) -> Raft:
    """Return a core that continues from the recovered state."""
    log = start.log
    table = LogTable(
        log.base_index,
        log.base_term,
        log.term_runs,
        log.last_index,
        log.membership,
        log.membership_index,
        log.memberships,
        log.unread,
    )
    return Raft(
        start.me,
        table,
        start.hard_state,
        durable_index=start.durable_index,
        commit_index=start.commit_index,
        settings=start.settings,
        random=start.random,
        now=start.now,
        may_vote=start.may_vote,
    )


NATIVE = EngineKind(NATIVE_ENGINE, start_core, CODEC)
