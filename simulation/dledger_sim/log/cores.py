"""Cores of native engines, for what only these have: the simulator knows other engines by their boundary alone."""

from __future__ import annotations

from dledger.core.raft import Raft
from dledger.replica.replica import Replica


def core_of(replica: Replica) -> Raft:
    """The core of a replica whose engine is the native one."""
    core = replica.engine
    assert isinstance(core, Raft), core
    return core
