"""`dledger cluster`: which broker groups name servers know, how these are, and which are to be forgotten."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin

from ..asking import Asking, asks_first
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import registered_groups, with_admin
from .cluster_health import health
from .completing import broker_groups
from .options import namesrv_option


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


@click.group(cls=HelpGroup)
def cluster() -> None:
    """Broker groups as name servers know them."""


cluster.add_command(health)


@cluster.command()
@namesrv_option
@output_option
def info(namesrv: str, output: str) -> None:
    """List the registered nodes of every broker group; id 0 is the leader.

    A group without an address was registered earlier, but none of its nodes is registered now.
    """

    async def work(admin: Admin) -> list[RegisteredNode]:
        nodes: list[RegisteredNode] = []
        for name, group in sorted((await registered_groups(admin)).items()):
            addresses: list[tuple[int | None, str | None]] = [*sorted(group.broker_addrs.items())] or [(None, None)]
            nodes += (RegisteredNode(group.cluster, name, *node) for node in addresses)
        return nodes

    emit(with_admin(namesrv, work), output, _render)


@cluster.command()
@namesrv_option
@click.argument("broker_group", shell_complete=broker_groups)
@asks_first
@output_option
def forget(namesrv: str, broker_group: str, output: str, asking: Asking) -> None:
    """Have name servers forget a broker group that will not come back.

    Clients then send to the other groups, and the messages of the forgotten one cannot be reached. Its files stay on
    the disks of its nodes. If any of these starts again, the group is registered again.

    Name all name servers in one command: --namesrv A;B. If another group is refused because this one has its name, that
    group then gets the name. `dledger cluster health` shows such groups.
    """

    async def list_effects(admin: Admin) -> list[str]:
        group = (await registered_groups(admin)).get(broker_group)
        if group is None:
            return [f"nothing: no name server knows broker group {broker_group}"]
        nodes = f"{len(group.broker_addrs)} of its nodes are registered"
        effects = [f"broker group {broker_group} of cluster {group.cluster} with all its messages; {nodes}"]
        rival = ((await admin.cluster_info()).refused_groups or {}).get(broker_group)
        if rival is not None:
            effects.append(f"the name goes to the group of cluster {rival.cluster} at {rival.address}")
        return effects

    if not asking.agreed(lambda: with_admin(namesrv, list_effects), output):
        return

    async def work(admin: Admin) -> ForgottenGroup:
        await admin.forget_group(broker_group)
        return ForgottenGroup(broker_group)

    emit(with_admin(namesrv, work), output, lambda result: f"{result.broker_group} {result.state}")


def _render(result: list[RegisteredNode]) -> str:
    rows = [
        (node.cluster, node.broker_group, "-" if node.broker_id is None else node.broker_id, node.address or "-")
        for node in result
    ]
    return columns(("cluster", "broker group", "id", "address"), rows)
