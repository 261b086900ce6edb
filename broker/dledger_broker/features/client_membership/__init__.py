"""Client membership: the consumer and producer groups that the connected clients are in.

- `clients.py` handles the requests of clients about themselves.
- `members.py` makes what members of consumer groups need, and notifies them.
- `consumers.py` answers questions about members of consumer groups.

Their tables are in `dledger_broker.clients`.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.channels import Channels
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.features.client_membership.clients import ClientRequests
from dledger_broker.features.client_membership.consumers import ConsumerRequests
from dledger_broker.features.client_membership.members import GroupMembers
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> ClientRequests:
    machine, env, group = context.machine, context.env, context.group
    gossip, readers = context.parts[Gossip], context.parts[Readers]
    consumers = ConsumerRequests(env, group, gossip, readers, context.requests)
    groups = context.parts[GroupRequests].proposals
    members = GroupMembers(machine, env, group, context.live, context.parts[Channels], groups, gossip)
    return ClientRequests(env, group, gossip, members, consumers)


FEATURE: Final = Feature(name="client membership", build=_build)
