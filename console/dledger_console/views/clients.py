"""Clients and connections: who produces and consumes for which group, and what a consumer does at this moment."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.operations import clients
from dledger_admin.operations.clients import Client, Running

from ..pages import AnyChange, AnyLook, Call, Look, Rows, Search, select

LIST: Final = "/clients"


class Clients(msgspec.Struct, frozen=True):
    """Clients of the groups of one page; `rows` counts groups, of which some have no client."""

    clients: list[Client]
    idle_groups: list[str]
    rows: Rows


class Member(msgspec.Struct, frozen=True):
    """A member of a consumer group."""

    group: str
    client_id: str


async def list_clients(call: Call, wanted: Search) -> Clients:
    """Return the clients of one page of the groups."""
    producers = await clients.group_names(call.admin)
    names, rows = select(list(producers), wanted)
    found = await clients.of_groups(call.admin, names, producers)
    present = {client.group for client in found}
    return Clients(found, [name for name in names if name not in present], rows)


async def show_running(call: Call, wanted: Member) -> Running:
    """Return what a consumer says of itself."""
    return await clients.running(call.admin, wanted.group, wanted.client_id)


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Clients: producers and consumers of each group, with their addresses.",
        wanted=Search,
        answer=list_clients,
        template="clients.html",
        section="clients",
    ),
    Look(
        path="/consumer-groups/{group}/members/{client_id}",
        summary="A consumer: its settings, and the stacks of its threads and tasks.",
        wanted=Member,
        answer=show_running,
        template="member.html",
        section="consumer groups",
    ),
]
CHANGES: Final[list[AnyChange]] = []
