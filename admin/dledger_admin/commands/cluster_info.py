"""`dledger cluster`: what the name server knows."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin

from ..output import columns, emit, output_option
from .client_calls import registered_groups, with_admin
from .options import namesrv_option


class RegisteredNode(msgspec.Struct, frozen=True):
    """One address of a broker group; id 0 is the leader."""

    cluster: str
    broker_group: str
    broker_id: int
    address: str


@click.group()
def cluster() -> None:
    """Look at clusters through their name server."""


@cluster.command()
@namesrv_option
@output_option
def info(namesrv: str, output: str) -> None:
    """List the registered nodes of every broker group; id 0 is the leader."""

    async def work(admin: Admin) -> list[RegisteredNode]:
        return [
            RegisteredNode(group.cluster, name, broker_id, address)
            for name, group in sorted((await registered_groups(admin)).items())
            for broker_id, address in sorted(group.broker_addrs.items())
        ]

    emit(with_admin(namesrv, work), output, _render)


def _render(result: list[RegisteredNode]) -> str:
    rows = [(one.cluster, one.broker_group, one.broker_id, one.address) for one in result]
    return columns(("cluster", "broker group", "id", "address"), rows)
