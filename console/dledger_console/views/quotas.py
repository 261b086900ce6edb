"""Quotas: limits per second of accounts and topics, what each has held and refused, and how to set and delete them."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.operations import quotas
from dledger_admin.operations.quotas import Kind, QuotaChange, QuotaLine
from dledger_client import Quota

from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, select_rows

LIST: Final = "/quotas"


class Quotas(msgspec.Struct, frozen=True):
    """A page of the list of quotas. `unseen` has a sentence for each broker group that does not answer."""

    quotas: list[QuotaLine]
    rows: Rows
    unseen: list[str]


class Named(msgspec.Struct, frozen=True):
    """A quota, by its kind and its name."""

    kind: Kind
    name: str


class Wish(Named, frozen=True):
    """Limits per second that a quota shall have on each broker group; 0 is no limit."""

    messages: int = 0
    bytes: int = 0


async def list_quotas(call: Call, wanted: Search) -> Quotas:
    """Return one page of the quotas of all broker groups."""
    answers = await quotas.known_lines(call.admin)
    lines = [line for found in answers.found.values() for line in found]
    return Quotas(*select_rows(lines, wanted, lambda line: line.name), answers.unseen)


async def what_setting_does(call: Call, wanted: Wish) -> list[str]:
    """Return what a quota limits."""
    return await quotas.what_setting_does(call.admin, _quota(wanted))


async def put(call: Call, wanted: Wish) -> QuotaChange:
    """Set a quota on all broker groups."""
    return await quotas.put(call.admin, _quota(wanted))


async def what_deleting_does(call: Call, wanted: Named) -> list[str]:
    """Return the limits that end."""
    return await quotas.what_deleting_does(call.admin, wanted.kind, wanted.name)


async def delete(call: Call, wanted: Named) -> QuotaChange:
    """Delete a quota on all broker groups."""
    return await quotas.delete(call.admin, wanted.kind, wanted.name)


def _quota(wanted: Wish) -> Quota:
    return Quota(wanted.kind, wanted.name, max(0, wanted.messages), max(0, wanted.bytes))


def _told(_: Named, done: QuotaChange) -> str:
    return f"The quota of {done.kind} {done.name} is {done.state}."


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Quotas: limits, and the requests that each has held and refused.",
        wanted=Search,
        answer=list_quotas,
        template="quotas.html",
        section="quotas",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/quota",
        summary="Set a quota",
        wanted=Wish,
        effects=what_setting_does,
        act=put,
        told=_told,
        after=lambda _: LIST,
        section="quotas",
    ),
    Change(
        path="/delete/quota",
        summary="Delete a quota",
        wanted=Named,
        effects=what_deleting_does,
        act=delete,
        told=_told,
        after=lambda _: LIST,
        section="quotas",
    ),
]
