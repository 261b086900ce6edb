"""`dledger quota`: limits per second for what an account sends and reads, and for what a topic gets and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from dledger_client import Admin, Quota, QuotaRow

from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import broker_groups_option, namesrv_option

_kind_argument: Final = click.argument("kind", type=click.Choice(["account", "topic", "account-reads", "topic-reads"]))


class QuotaLine(msgspec.Struct, frozen=True):
    """A quota of a broker group; a limit of 0 is none. `held` and `refused` count requests since the leader started."""

    broker_group: str
    kind: str
    name: str
    messages_per_second: int
    bytes_per_second: int
    held: int
    refused: int


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
    emit(_put_quota(namesrv, Quota(kind, name, messages, size), broker_groups), output, _render)


@quota.command("list")
@namesrv_option
@output_option
def list_quotas(namesrv: str, output: str) -> None:
    """List the quotas of every broker group, with how many requests its leader has held and refused for each."""

    async def work(admin: Admin) -> list[QuotaLine]:
        return _make_lines(await admin.quotas())

    emit(with_admin(namesrv, work), output, _render)


@quota.command()
@namesrv_option
@_kind_argument
@click.argument("name")
@broker_groups_option
@output_option
def delete(namesrv: str, kind: str, name: str, broker_groups: tuple[str, ...], output: str) -> None:
    """Delete a quota; requests that it held go on at once. A quota that does not exist is an error."""
    emit(_put_quota(namesrv, Quota(kind, name), broker_groups, must_exist=True), output, _render)


def _put_quota(
    namesrv: str, new_quota: Quota, broker_groups: Sequence[str], *, must_exist: bool = False
) -> list[QuotaLine]:
    """Set a quota, and return all quotas afterwards. Raises `AdminError` if it `must_exist` and does not."""

    async def work(admin: Admin) -> list[QuotaLine]:
        groups = list(broker_groups) or None
        if must_exist:
            existing = [row for rows in (await admin.quotas(broker_groups=groups)).values() for row in rows]
            if not any((row.kind, row.name) == (new_quota.kind, new_quota.name) for row in existing):
                raise AdminError(
                    f"{new_quota.kind} {new_quota.name!r} has no quota there: `dledger quota list` shows those that "
                    "there are"
                )
        await admin.put_quota(new_quota, broker_groups=groups)
        return _make_lines(await admin.quotas(broker_groups=groups))

    return with_admin(namesrv, work)


def _make_lines(quotas_by_group: Mapping[str, Sequence[QuotaRow]]) -> list[QuotaLine]:
    return [
        QuotaLine(group, row.kind, row.name, row.messages_per_second, row.bytes_per_second, row.held, row.refused)
        for group, rows in sorted(quotas_by_group.items())
        for row in rows
    ]


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
