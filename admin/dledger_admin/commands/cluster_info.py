"""`dledger cluster`: which broker groups name servers know, how these are, and which are to be forgotten."""

from __future__ import annotations

import click

from dledger_client import Admin

from ..asking import Asking, asks_first
from ..help import HelpGroup
from ..operations.clusters import ForgottenGroup, RegisteredNode, registered_nodes, what_forgetting_loses
from ..operations.clusters import forget as forget_group
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .cluster_health import health
from .completing import broker_groups
from .options import namesrv_option


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

    emit(with_admin(namesrv, registered_nodes), output, _render)


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
        return await what_forgetting_loses(admin, broker_group)

    if not asking.agreed(lambda: with_admin(namesrv, list_effects), output):
        return

    async def work(admin: Admin) -> ForgottenGroup:
        return await forget_group(admin, broker_group)

    emit(with_admin(namesrv, work), output, lambda result: f"{result.broker_group} {result.state}")


def _render(result: list[RegisteredNode]) -> str:
    rows = [
        (node.cluster, node.broker_group, "-" if node.broker_id is None else node.broker_id, node.address or "-")
        for node in result
    ]
    return columns(("cluster", "broker group", "id", "address"), rows)
