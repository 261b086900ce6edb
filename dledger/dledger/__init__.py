"""Replicated log: Raft over segments of opaque bytes. It can be used alone.

`Node` is one member of a group. A service implements `StateMachine` and uses `Log`. The folders: `core` decides (pure),
`store` keeps, `net` carries, and `replica` drives these three. `consensus` is the interface between `replica` and any
engine that decides. Nothing here knows of topics or messages.
"""

from dledger.config import NodeConfig
from dledger.log import Log
from dledger.node import Node
from dledger.replica.status import NodeStatus
from dledger.statemachine import CommittedEntry, Leadership, StateMachine
from dledger.types import Membership, Position, ReplicaId, SnapshotMeta

__all__ = [
    "CommittedEntry",
    "Leadership",
    "Log",
    "Membership",
    "Node",
    "NodeConfig",
    "NodeStatus",
    "Position",
    "ReplicaId",
    "SnapshotMeta",
    "StateMachine",
]
