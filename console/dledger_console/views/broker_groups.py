"""Broker groups: who leads and why, how far each replica is, what is wrong; moving the leader, and draining a node."""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec

from dledger_admin.health.reports import Limits
from dledger_admin.operations import leadership
from dledger_admin.operations.broker_groups import BrokerGroup, broker_groups
from dledger_admin.operations.errors import MissingError
from dledger_admin.operations.leadership import Drained, Leader, Led
from dledger_client import ClientError

from ..history import Leadership, Rates
from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, select

LIST: Final = "/broker-groups"
LEADERS_SECONDS: Final = 2.0
"""Time for which the leaders that nodes remember are shared."""


class BrokerGroups(msgspec.Struct, frozen=True):
    """A page of the list of broker groups."""

    groups: list[BrokerGroup]
    rows: Rows


class Named(msgspec.Struct, frozen=True):
    """The name of a broker group."""

    broker_group: str


class Described(msgspec.Struct, frozen=True):
    """A broker group, and its leaders, the newest first.

    `leaders` are those that its nodes remember, with the reasons that they know; `unseen` says why there are none.
    `leaderships` are those that the console has seen since its start.
    """

    group: BrokerGroup
    leaders: list[Leader]
    unseen: str
    leaderships: list[Leadership]
    rates: Rates


class Node(Named, frozen=True):
    """A node of a broker group."""

    node: str


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
                return Described(group, [], "No node tells this account.", [], Rates())
            leaders, unseen = await _leaders(call, group.name)
            return Described(group, leaders, unseen, history.leaderships(group.name), history.rates(group.name))
    raise MissingError(f"No name server and no node knows a broker group {wanted.broker_group}.")


async def _leaders(call: Call, broker_group: str) -> tuple[list[Leader], str]:
    key = ("leaders", broker_group, call.access.credentials)
    try:
        found = await call.cluster.share(key, LEADERS_SECONDS, partial(leadership.leaders, call.admin, broker_group))
    except ClientError as error:
        return [], f"The nodes do not tell now which leaders they remember: {error}"
    return found, "" if found else "No node remembers a leader."


async def what_handing_over_does(call: Call, wanted: Node) -> list[str]:
    """Return what moving the leadership to a node does."""
    return await leadership.what_handing_over_does(call.access, wanted.broker_group, wanted.node)


async def hand_over(call: Call, wanted: Node) -> Led:
    """Move the leadership to a node, and wait until it leads."""
    return await leadership.hand_over(call.admin, call.access, wanted.broker_group, wanted.node)


async def what_draining_does(call: Call, wanted: Node) -> list[str]:
    """Return what draining a node does."""
    return await leadership.what_draining_does(call.access, wanted.broker_group, wanted.node)


async def drain(call: Call, wanted: Node) -> Drained:
    """Move the leadership away from a node, and say whether it may be stopped."""
    return await leadership.drain(call.admin, call.access, wanted.broker_group, wanted.node)


def page_of(broker_group: str) -> str:
    """Return the path of a broker group's page."""
    return f"{LIST}/{quote(broker_group, safe='')}"


def _told_led(_: Node, done: Led) -> str:
    return f"{done.leader} leads broker group {done.broker_group}."


def _told_drained(_: Node, done: Drained) -> str:
    return f"{done.node} is drained: {done.leader} leads broker group {done.broker_group}. {done.text}."


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
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
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/broker-groups/{broker_group}/leader",
        summary="Move the leader",
        wanted=Node,
        effects=what_handing_over_does,
        act=hand_over,
        told=_told_led,
        after=lambda wanted: page_of(wanted.broker_group),
        section="broker groups",
    ),
    Change(
        path="/broker-groups/{broker_group}/drain",
        summary="Drain a node",
        wanted=Node,
        effects=what_draining_does,
        act=drain,
        told=_told_drained,
        after=lambda wanted: page_of(wanted.broker_group),
        section="broker groups",
    ),
]
