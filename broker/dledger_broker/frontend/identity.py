"""What a name server is to know of a node: who compares it with what was told knows whether to tell anew."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dledger_remoting.registration import DataVersion


class OwnAlias(NamedTuple):
    """What a name server is told of this node's write alias, and, by a leader, of whom else it may know one."""

    node_id: str
    number: int
    address: str
    member_ids: str | None


Identity: TypeAlias = tuple[int, DataVersion, OwnAlias | None]
"""A broker id, the version of the topics, and the write alias, if the node has a port for it.

The alias does not depend on the topics that this node knows. 1. A node is killed. 2. It starts, and has yet to hear
what is committed: its table has no topic. 3. It registers without an alias, and routes list it no more.
"""
