"""Calls of an `Admin` to single nodes: what each has seen, how it is configured, who is connected to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from dledger_remoting.audit import AuditHeader, AuditLine, AuditLines
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import encode_ext
from dledger_remoting.leaders import HandOverHeader, LeaderChangeRow, LeaderChanges
from dledger_remoting.statistics import ProducerTable
from dledger_remoting.waiting import DelayedRows, HalfRows, ListDelayedHeader, ListHalvesHeader

from ..cluster.core import ATTEMPT_SECONDS, check_response
from ..errors import ClientError
from .cluster_calls import ClusterCalls, decode

Rows = TypeVar("Rows", DelayedRows, HalfRows)

_NOT_SUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_OLD_VERSION: Final = frozenset({_NOT_SUPPORTED})
MAX_POSITION: Final = (1 << 63) - 1


class ConnectedProducer(msgspec.Struct, frozen=True):
    """A client of a producer group. `heard_ms` is the time of its last heartbeat, in ms since 1970."""

    group: str
    client_id: str
    address: str
    language: str
    heard_ms: int


async def _ask_nodes(
    calls: ClusterCalls, broker_group: str, code: int, ext: Mapping[str, str] | None = None
) -> dict[str, RemotingCommand]:
    """Return the answers of the registered nodes of a broker group, by address.

    Nodes that do not answer within seconds, or are of a version that does not know the request, are left out.
    """
    core = calls.core
    await calls.group_names([broker_group])
    addresses = core.routes.group(broker_group).addresses
    deadline = min(calls.deadline(), core.loop.time() + ATTEMPT_SECONDS)
    answers = await asyncio.gather(
        *(core.call(address, code, ext or {}, deadline=deadline) for address in addresses), return_exceptions=True
    )
    found: dict[str, RemotingCommand] = {}
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, RemotingCommand):
            if answer.code != _NOT_SUPPORTED:
                found[address] = check_response(answer)
        elif not isinstance(answer, ClientError):
            raise answer
    return found


async def leader_changes(calls: ClusterCalls, broker_group: str) -> dict[str, list[LeaderChangeRow]]:
    """Return the leaders that each node of a broker group has seen, by node id."""
    answers = await _ask_nodes(calls, broker_group, RequestCode.LIST_LEADER_CHANGES)
    told = [decode(LeaderChanges, answer.body) for answer in answers.values()]
    return {one.node_id: one.changes for one in told}


async def audit_lines(calls: ClusterCalls, broker_group: str, word: str) -> dict[str, list[AuditLine]]:
    """Return the newest lines of the audit log of each node of a broker group, by node id."""
    answers = await _ask_nodes(calls, broker_group, RequestCode.READ_AUDIT, encode_ext(AuditHeader(word=word)))
    told = [decode(AuditLines, answer.body) for answer in answers.values()]
    return {one.node_id: one.lines for one in told}


async def hand_over(calls: ClusterCalls, broker_group: str, node_id: str) -> None:
    """Have a broker group's leader hand over to a voter. Returns once that has begun."""
    await calls.group_names([broker_group])
    group = calls.core.routes.group(broker_group)
    header = encode_ext(HandOverHeader(node_id))
    await calls.core.call_leader(group, RequestCode.HAND_OVER, header, b"", deadline=calls.deadline())


async def delayed_messages(calls: ClusterCalls, broker_group: str, after_ms: int) -> DelayedRows:
    """Return the delayed messages of a broker group that are due next, after a time."""
    header = encode_ext(ListDelayedHeader(after_due_ms=after_ms, after_position=MAX_POSITION))
    answers = await calls.ask_leaders(
        await calls.group_names([broker_group]), RequestCode.LIST_DELAYED, header, accept=_OLD_VERSION
    )
    return _rows_in(DelayedRows, answers[broker_group])


async def open_halves(calls: ClusterCalls, broker_group: str) -> HalfRows:
    """Return the oldest open halves of a broker group."""
    answers = await calls.ask_leaders(
        await calls.group_names([broker_group]),
        RequestCode.LIST_HALVES,
        encode_ext(ListHalvesHeader()),
        accept=_OLD_VERSION,
    )
    return _rows_in(HalfRows, answers[broker_group])


def _rows_in(body_type: type[Rows], answer: RemotingCommand) -> Rows:
    """Return the rows of an answer, none of a version that does not tell."""
    return body_type([], 0) if answer.code == _NOT_SUPPORTED else decode(body_type, answer.body)


async def configurations(calls: ClusterCalls, broker_group: str) -> dict[str, Mapping[str, str]]:
    """Return the configuration in effect on each node of a broker group, as texts by name, by address."""
    answers = await _ask_nodes(calls, broker_group, RequestCode.GET_BROKER_CONFIG)
    return {address: _properties_in(bytes(answer.body).decode(errors="replace")) for address, answer in answers.items()}


async def producers(calls: ClusterCalls) -> list[ConnectedProducer]:
    """Return the clients of all producer groups that nodes have heard of, by group and client id."""
    names = await calls.group_names(None)
    answers = await asyncio.gather(*(_ask_nodes(calls, name, RequestCode.GET_ALL_PRODUCER_INFO) for name in names))
    found: dict[tuple[str, str], ConnectedProducer] = {}
    for answer in (answer for told in answers for answer in told.values()):
        for group, rows in decode(ProducerTable, answer.body).data.items():
            for row in rows:
                heard_ms, address = row.last_update_timestamp, row.remote_ip.lstrip("/")
                known = found.get((group, row.client_id))
                if known is None or known.heard_ms < heard_ms:
                    client = ConnectedProducer(group, row.client_id, address, row.language, heard_ms)
                    found[group, row.client_id] = client
    return [found[key] for key in sorted(found)]


def _properties_in(text: str) -> Mapping[str, str]:
    """Return the values of a properties file by key, as texts."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in lines}
