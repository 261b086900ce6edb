"""A replicated log: Raft over segments of opaque bytes, usable alone.

`Node` is one member of a group; `StateMachine` is what a service implements, `Log` what it sees.  The folders: `core`
decides (pure), `store` keeps, `net` carries, `replica` drives the three; between it and whatever decides stands
`consensus`.  Nothing here knows of topics or messages.
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
