"""`dledger quota`: limits per second for what an account sends and reads, and for what a topic gets and gives."""

from __future__ import annotations

from typing import Final

import click

from dledger_client import Admin, Quota

from ..errors import WrongUsageError
from ..help import HelpGroup
from ..operations import quotas
from ..operations.quotas import QuotaLine
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import broker_groups_option, namesrv_option

_kind_argument: Final = click.argument("kind", type=click.Choice(["account", "topic", "account-reads", "topic-reads"]))


@click.group(cls=HelpGroup)
def quota() -> None:
    """Set, list and delete quotas: limits per second, on each broker group, for sends and reads by an account or of a
    topic.
    """


@quota.command("set")
@namesrv_option
@_kind_argument
@click.argument("name")
@click.option("--messages", type=click.IntRange(0), default=0, help="Messages a second.  [default: no limit]")
@click.option("--bytes", "size", type=click.IntRange(0), default=0, help="Bytes a second.  [default: no limit]")
@broker_groups_option
@output_option
def set_quota(
    namesrv: str, kind: str, name: str, messages: int, size: int, broker_groups: tuple[str, ...], output: str
) -> None:
    """Set the quota of an account or a topic, which need not exist; it counts at once and replaces the previous quota.

    Sends beyond it are held for up to a second, and then answered 2 (SYSTEM_BUSY). Not every client tries them again.
    Kinds that end with -reads limit pulls and pops: they are held for up to 3 seconds, and then answered 2.
    """
    if not messages and not size:
        raise WrongUsageError("--messages or --bytes is needed; delete takes a quota back")

    async def work(admin: Admin) -> list[QuotaLine]:
        return (await quotas.put(admin, Quota(kind, name, messages, size), broker_groups)).quotas

    emit(with_admin(namesrv, work), output, _render)


@quota.command("list")
@namesrv_option
@output_option
def list_quotas(namesrv: str, output: str) -> None:
    """List the quotas of every broker group, with how many requests its leader has held and refused for each."""
    emit(with_admin(namesrv, quotas.lines), output, _render)


@quota.command()
@namesrv_option
@_kind_argument
@click.argument("name")
@broker_groups_option
@output_option
def delete(namesrv: str, kind: str, name: str, broker_groups: tuple[str, ...], output: str) -> None:
    """Delete a quota; requests that it held go on at once. A quota that does not exist is an error."""

    async def work(admin: Admin) -> list[QuotaLine]:
        return (await quotas.delete(admin, kind, name, broker_groups)).quotas

    emit(with_admin(namesrv, work), output, _render)


def _render(result: list[QuotaLine]) -> str:
    if not result:
        return "there is no quota: nothing is held or refused"
    return columns(
        ("broker group", "kind", "name", "messages/s", "bytes/s", "held", "refused"),
        [
            (
                line.broker_group,
                line.kind,
                line.name,
                str(line.messages_per_second or "-"),
                str(line.bytes_per_second or "-"),
                str(line.held),
                str(line.refused),
            )
            for line in result
        ],
    )
