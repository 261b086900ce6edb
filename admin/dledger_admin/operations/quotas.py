"""Quotas: limits per second on each broker group, and how many requests each has held and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from dledger_client import Admin, Quota, QuotaRow

from .each_group import Answers, ask_each
from .errors import MissingError, OperationError

Kind: TypeAlias = Literal["account", "topic", "account-reads", "topic-reads"]


class QuotaLine(msgspec.Struct, frozen=True):
    """A quota of a broker group; a limit of 0 is none. `held` and `refused` count requests since the leader started."""

    broker_group: str
    kind: str
    name: str
    messages_per_second: int
    bytes_per_second: int
    held: int
    refused: int


class QuotaChange(msgspec.Struct, frozen=True):
    """A changed quota, and all quotas of the broker groups since."""

    kind: str
    name: str
    state: str
    quotas: list[QuotaLine]


async def lines(admin: Admin, broker_groups: Sequence[str] = ()) -> list[QuotaLine]:
    """Return the quotas of some broker groups, of all by default."""
    return _make_lines(await admin.quotas(broker_groups=list(broker_groups) or None))


async def known_lines(admin: Admin) -> Answers[list[QuotaLine]]:
    """Return the quotas of each broker group that answers, and a sentence for each that does not."""
    return await ask_each(admin, lambda name: lines(admin, [name]))


async def what_setting_does(admin: Admin, quota: Quota, broker_groups: Sequence[str] = ()) -> list[str]:
    """Describe what a quota limits on each broker group. Raises `OperationError` for a quota without a limit."""
    _require_limit(quota)
    known = await lines(admin, broker_groups)
    groups = sorted(broker_groups or await admin.broker_groups())
    before = {line.broker_group: line for line in known if (line.kind, line.name) == (quota.kind, quota.name)}
    verb = "reads" if quota.kind.endswith("-reads") else "sends"
    subject = f"{quota.kind.removesuffix('-reads')} {quota.name}"
    return [
        f"{verb} of {subject} on {group} are held beyond {_describe(quota)}, and refused after that"
        + (f"; until now the limit is {_describe(before[group])}" if group in before else "")
        for group in groups
    ]


async def put(admin: Admin, quota: Quota, broker_groups: Sequence[str] = ()) -> QuotaChange:
    """Set a quota, which counts at once. Raises `OperationError` for a quota without a limit."""
    _require_limit(quota)
    await admin.put_quota(quota, broker_groups=list(broker_groups) or None)
    return QuotaChange(quota.kind, quota.name, "set", await lines(admin, broker_groups))


async def what_deleting_does(admin: Admin, kind: str, name: str, broker_groups: Sequence[str] = ()) -> list[str]:
    """Describe the limits that end. Raises `MissingError` if there is no such quota."""
    return [
        f"the quota of {kind} {name} on {line.broker_group}, {_describe(line)}; requests that it holds go on at once"
        for line in await _existing(admin, kind, name, broker_groups)
    ]


async def delete(admin: Admin, kind: str, name: str, broker_groups: Sequence[str] = ()) -> QuotaChange:
    """Delete a quota. Raises `MissingError` if there is none."""
    await _existing(admin, kind, name, broker_groups)
    await admin.put_quota(Quota(kind, name), broker_groups=list(broker_groups) or None)
    return QuotaChange(kind, name, "deleted", await lines(admin, broker_groups))


async def _existing(admin: Admin, kind: str, name: str, broker_groups: Sequence[str]) -> list[QuotaLine]:
    found = [line for line in await lines(admin, broker_groups) if (line.kind, line.name) == (kind, name)]
    if not found:
        raise MissingError(f"{kind} {name!r} has no quota there", "`dledger quota list` shows those that there are")
    return found


def _require_limit(quota: Quota) -> None:
    if not quota.messages_per_second and not quota.bytes_per_second:
        raise OperationError("a quota needs a limit of messages or bytes; delete takes a quota back")


def _describe(quota: Quota | QuotaLine) -> str:
    limits = ((quota.messages_per_second, "messages"), (quota.bytes_per_second, "bytes"))
    return " and ".join(f"{limit} {what} per second" for limit, what in limits if limit)


def _make_lines(quotas_by_group: Mapping[str, Sequence[QuotaRow]]) -> list[QuotaLine]:
    return [
        QuotaLine(group, row.kind, row.name, row.messages_per_second, row.bytes_per_second, row.held, row.refused)
        for group, rows in sorted(quotas_by_group.items())
        for row in rows
    ]
