"""Broker groups: who leads, how far each replica is, and what is wrong."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.health.reports import Limits
from dledger_admin.operations.broker_groups import BrokerGroup, broker_groups
from dledger_admin.operations.errors import MissingError

from ..history import Leadership, Rates
from ..pages import AnyChange, AnyLook, Call, Look, Rows, Search, select


class BrokerGroups(msgspec.Struct, frozen=True):
    """A page of the list of broker groups."""

    groups: list[BrokerGroup]
    rows: Rows


class Named(msgspec.Struct, frozen=True):
    """The name of a broker group."""

    broker_group: str


class Described(msgspec.Struct, frozen=True):
    """A broker group, and what the console has seen of it since its start: the newest leadership first."""

    group: BrokerGroup
    leaderships: list[Leadership]
    rates: Rates


async def list_groups(call: Call, wanted: Search) -> BrokerGroups:
    """Return one page of the broker groups that name servers or nodes know."""
    found = {group.name: group for group in broker_groups(await call.cluster.survey(call.access), Limits())}
    names, rows = select(sorted(found), wanted)
    return BrokerGroups([found[name] for name in names], rows)


async def describe(call: Call, wanted: Named) -> Described:
    """Return one broker group. Raises `MissingError`."""
    history = call.cluster.history
    for group in broker_groups(await call.cluster.survey(call.access), Limits()):
        if group.name == wanted.broker_group:
            if all(replica.term is None for replica in group.replicas):  # perhaps the account may not see more
                return Described(group, [], Rates())
            return Described(group, history.leaderships(group.name), history.rates(group.name))
    raise MissingError(f"No name server and no node knows a broker group {wanted.broker_group}.")


LOOKS: Final[list[AnyLook]] = [
    Look(
        path="/broker-groups",
        summary="Broker groups: leaders, terms, members, rates.",
        wanted=Search,
        answer=list_groups,
        template="broker_groups.html",
        section="broker groups",
        is_live=True,
    ),
    Look(
        path="/broker-groups/{broker_group}",
        summary="A broker group: the role, log and progress of each node.",
        wanted=Named,
        answer=describe,
        template="broker_group.html",
        section="broker groups",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = []
