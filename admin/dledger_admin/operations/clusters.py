"""Clusters: the broker groups that name servers know, and how all of it is."""

from __future__ import annotations

import msgspec

from dledger_client import Admin
from dledger_remoting.route import BrokerData

from ..health.judge import judge
from ..health.reports import ClusterHealth, Limits, Survey
from ..health.survey import survey
from .access import Access
from .errors import OperationError


class RegisteredNode(msgspec.Struct, frozen=True):
    """One address of a broker group; id 0 is the leader. A group of which no node is registered has neither."""

    cluster: str
    broker_group: str
    broker_id: int | None
    address: str | None


class ForgottenGroup(msgspec.Struct, frozen=True):
    """A broker group that name servers forgot."""

    broker_group: str
    state: str = "forgotten"


async def registered_groups(admin: Admin) -> dict[str, BrokerData]:
    """Return the broker groups that the name server knows. Raises `OperationError` if there is none."""
    groups = await admin.broker_groups()
    if not groups:
        raise OperationError(
            "no broker group is registered with the name server", "`dledger status` shows which nodes run"
        )
    return groups


async def registered_nodes(admin: Admin) -> list[RegisteredNode]:
    """Return the registered nodes of every broker group. Raises `OperationError` if there is no group."""
    nodes: list[RegisteredNode] = []
    for name, group in sorted((await registered_groups(admin)).items()):
        addresses: list[tuple[int | None, str | None]] = [*sorted(group.broker_addrs.items())] or [(None, None)]
        nodes += (RegisteredNode(group.cluster, name, *node) for node in addresses)
    return nodes


async def what_forgetting_loses(admin: Admin, broker_group: str) -> list[str]:
    """Describe what goes with a broker group that name servers forget, and the group that then gets its name."""
    group = (await registered_groups(admin)).get(broker_group)
    if group is None:
        return [f"nothing: no name server knows broker group {broker_group}"]
    nodes = f"{len(group.broker_addrs)} of its nodes are registered"
    effects = [f"broker group {broker_group} of cluster {group.cluster} with all its messages; {nodes}"]
    rival = ((await admin.cluster_info()).refused_groups or {}).get(broker_group)
    if rival is not None:
        effects.append(f"the name goes to the group of cluster {rival.cluster} at {rival.address}")
    return effects


async def forget(admin: Admin, broker_group: str) -> ForgottenGroup:
    """Have name servers forget a broker group that has no registered node."""
    await admin.forget_group(broker_group)
    return ForgottenGroup(broker_group)


async def look(access: Access) -> Survey:
    """Ask all name servers and nodes how they are. Missing answers are in the result, too."""
    return await survey(access.name_servers, access.credentials, access.tls)


async def health(access: Access, limits: Limits) -> ClusterHealth:
    """Return one line per node, and everything that is wrong with the cluster."""
    return judge(await look(access), limits)


def describe_health(health: ClusterHealth) -> str:
    """Return in one sentence whether the cluster is healthy; if it is not, with the first problem."""
    groups = len({node.broker_group for node in health.nodes})
    if health.healthy:
        spare = "; ".join(f"{line.subject}: {line.text}" for line in health.survival)
        return f"Healthy: {_counted(len(health.nodes), 'node')} in {_counted(groups, 'broker group')} work. {spare}"
    first = health.problems[0]
    others = len(health.problems) - 1
    more = f" ({_counted(others, 'more problem')} below)" if others else ""
    return f"Not healthy: {first.subject}: {first.text}{more}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
