"""`dledger quota`: what accounts and topics may be sent in a second, and what of it may be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from dledger_client import Admin, Quota, QuotaRow

from ..errors import WrongUsageError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import broker_groups_option, namesrv_option

_kind_argument: Final = click.argument("kind", type=click.Choice(["account", "topic", "account-reads", "topic-reads"]))


class QuotaLine(msgspec.Struct, frozen=True):
    """A quota of a broker group; 0 is no limit. `held` and `refused` count requests, since the leader has started."""

    broker_group: str
    kind: str
    name: str
    messages_per_second: int
    bytes_per_second: int
    held: int
    refused: int


@click.group(cls=HelpGroup)
def quota() -> None:
    """Set, list and delete quotas: what accounts and topics may be sent in a second, on each broker group, and what may
    be read.
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
    """Set the quota of an account or a topic, there or not; it counts at once, and replaces the one before.

    Sends beyond it are held for up to a second, and then answered 2 (SYSTEM_BUSY), which not every client tries again.
    Kinds that end with -reads limit pulls and pops: they are held for up to 3 seconds, and then answered 2.
    """
    if not messages and not size:
        raise WrongUsageError("--messages or --bytes is needed; delete takes a quota back")
    emit(_put(namesrv, Quota(kind, name, messages, size), broker_groups), output, _render)


@quota.command("list")
@namesrv_option
@output_option
def list_quotas(namesrv: str, output: str) -> None:
    """List the quotas of every broker group, with how many requests its leader has held and refused for each."""

    async def work(admin: Admin) -> list[QuotaLine]:
        return _lines(await admin.quotas())

    emit(with_admin(namesrv, work), output, _render)


@quota.command()
@namesrv_option
@_kind_argument
@click.argument("name")
@broker_groups_option
@output_option
def delete(namesrv: str, kind: str, name: str, broker_groups: tuple[str, ...], output: str) -> None:
    """Delete a quota; what was held for it goes on at once. None is no error."""
    emit(_put(namesrv, Quota(kind, name), broker_groups), output, _render)


def _put(namesrv: str, asked: Quota, wanted: Sequence[str]) -> list[QuotaLine]:
    """Set it; what is set then."""

    async def work(admin: Admin) -> list[QuotaLine]:
        groups = list(wanted) or None
        await admin.put_quota(asked, broker_groups=groups)
        return _lines(await admin.quotas(broker_groups=groups))

    return with_admin(namesrv, work)


def _lines(found: Mapping[str, Sequence[QuotaRow]]) -> list[QuotaLine]:
    return [
        QuotaLine(group, row.kind, row.name, row.messages_per_second, row.bytes_per_second, row.held, row.refused)
        for group, rows in sorted(found.items())
        for row in rows
    ]


def _render(result: list[QuotaLine]) -> str:
    if not result:
        return "there is no quota: nothing is held or refused"
    return columns(
        ("broker group", "kind", "name", "messages/s", "bytes/s", "held", "refused"),
        [
            (
                one.broker_group,
                one.kind,
                one.name,
                str(one.messages_per_second or "-"),
                str(one.bytes_per_second or "-"),
                str(one.held),
                str(one.refused),
            )
            for one in result
        ],
    )
