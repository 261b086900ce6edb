"""`dledger cluster`: which broker groups name servers know, how these are, and which are to be forgotten."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin

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

    A group without address has been registered, and none of its nodes is now.
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
@output_option
def forget(namesrv: str, broker_group: str, output: str) -> None:
    """Give up a broker group that will not come back, with its messages.

    Name servers remember a group of which no node is registered, so that keys keep their queues and nothing that
    concerns all groups is done without it. Tell all name servers at once: --namesrv A;B.
    """

    async def work(admin: Admin) -> ForgottenGroup:
        await admin.forget_group(broker_group)
        return ForgottenGroup(broker_group)

    emit(with_admin(namesrv, work), output, lambda result: f"{result.broker_group} {result.state}")


def _render(result: list[RegisteredNode]) -> str:
    rows = [
        (one.cluster, one.broker_group, "-" if one.broker_id is None else one.broker_id, one.address or "-")
        for one in result
    ]
    return columns(("cluster", "broker group", "id", "address"), rows)
