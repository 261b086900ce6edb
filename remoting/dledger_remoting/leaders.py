"""Requests about the leader of a broker group (20030, 20031), which RocketMQ does not have."""

from __future__ import annotations

import msgspec


class LeaderChangeRow(msgspec.Struct, frozen=True, rename="camel"):
    """Another leader, or none (null), as of a term, as one node has seen it. `at_ms` is by this node's wall clock."""

    at_ms: int
    term: int
    leader: str | None
    reason: str


class LeaderChanges(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 20030: the node that answers, and the changes that it has seen since its start, the oldest first."""

    node_id: str
    changes: list[LeaderChangeRow]


class HandOverHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks a leader to hand over to a voter of its group (20031)."""

    node_id: str
