"""Facts about a node that are registered with a name server. If they differ from the facts registered before, the node
must register again.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dledger_remoting.registration import DataVersion


class OwnAlias(NamedTuple):
    """This node's write alias, as it is registered with a name server. A leader adds the members whose aliases the name
    server may know.
    """

    node_id: str
    number: int
    address: str
    member_ids: str | None


Identity: TypeAlias = tuple[int, DataVersion, OwnAlias | None, str]
"""A broker id, the version of the topics, the write alias, if the node has a port for it, and the group's identity.

The alias must not depend on the topics that this node knows. If it did:

1. A node is killed.
2. It starts, and does not know yet what is committed: its table has no topic.
3. It registers without an alias, and routes do not list its alias any more.
"""
