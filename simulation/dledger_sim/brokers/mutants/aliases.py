"""Bugs of write aliases, and of the nodes to which readers are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dledger_broker.clients.gossip import READS_AS
from dledger_broker.features.pulling.placement import Placement
from dledger_broker.frontend import dispatch
from dledger_namesrv import aliases
from dledger_namesrv.records import Group
from dledger_namesrv.table import RouteTable
from dledger_remoting.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, alias_name
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("aliases")

CATALOGUE.add(
    "alias-stores-where-its-client-says",
    "a message that a write alias takes goes to the queue that follows from the alias's number",
    (dispatch, "mark_send", lambda _request, _number: None),
)


def _all_entries(group: Group, queues: QueueData, shown: BrokerData) -> Iterator[tuple[QueueData, BrokerData]]:
    no_leader = msgspec.structs.replace(shown, broker_addrs={})
    return _alias_entries(group, queues, no_leader)


_alias_entries = aliases.alias_entries
CATALOGUE.add(
    "leader-has-an-alias-too",
    "a route lists no write alias of the node that it shows as the leader",
    (aliases, "alias_entries", _all_entries),
)

_cluster_info = RouteTable.cluster_info


def _with_aliases(self: RouteTable, *, include_absent: bool = False) -> ClusterInfo:
    found = _cluster_info(self, include_absent=include_absent)
    for name, group in self._groups.items():
        for number, alias in group.aliases.items():
            listed = alias_name(name, number)
            found.broker_addr_table[listed] = BrokerData(listed, "", {MASTER_ID: alias.address})
    return found


CATALOGUE.add(
    "aliases-are-listed-as-brokers",
    "no list of a cluster has write aliases",
    (RouteTable, "cluster_info", _with_aliases),
)


def _look_at_none(self: Placement) -> Sequence[int]:
    return sorted(self._gossip.reported_facts(READS_AS).values())


CATALOGUE.add(
    "dead-followers-are-homes",
    "a leader sends no reader to a node that it does not hear",
    (Placement, "_choose_homes", _look_at_none),
)
CATALOGUE.add(
    "new-leader-takes-its-readers-for-its-own",
    "no reader is sent to id 0 while id 0 may stand for a dead leader",
    (Placement, "_is_changing", False),
)
