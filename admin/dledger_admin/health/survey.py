"""Survey of a cluster: every name server is asked which nodes there are (106), and every node how it is (28)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from dledger_client import ClientError
from dledger_client.core import ClientCore, check_response
from dledger_client.nameservers import NameServers
from dledger_remoting.bodies import KVTable, decode_fastjson_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import IncludeAbsentHeader, encode_ext
from dledger_remoting.route import decode_cluster_info

from .reports import NameServerAnswer, NodeAnswer, NodeReport, Survey

ANSWER_SECONDS: Final = 3.0
"""How long each has to answer; all are asked at the same time."""

_INCLUDE_ABSENT: Final = encode_ext(IncludeAbsentHeader(include_absent=True))
_SECOND_MS: Final = 1000


async def survey(namesrv: str) -> Survey:
    """Ask everybody; who does not answer is in the result.

    A node that no name server lists is asked too, if another node of its group tells its address.
    """
    core = ClientCore(namesrv)
    try:
        asked = core.name_servers.addresses
        name_servers = list(await asyncio.gather(*(_ask_name_server(core, address) for address in asked)))
        listed = {
            address
            for one in name_servers
            for group in (one.groups or {}).values()
            for address in group.broker_addrs.values()
        }
        nodes = await _ask_nodes(core, listed)
        told = {address for one in nodes.values() if isinstance(one, NodeAnswer) for address in one.addresses.values()}
        return Survey(name_servers, nodes | await _ask_nodes(core, told - nodes.keys()))
    finally:
        await core.close()


async def _ask_nodes(core: ClientCore, addresses: Iterable[str]) -> dict[str, NodeAnswer | str]:
    wanted = sorted(addresses)
    return dict(zip(wanted, await asyncio.gather(*(_ask_node(core, address) for address in wanted)), strict=True))


async def _ask_name_server(core: ClientCore, address: str) -> NameServerAnswer:
    command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, ext=_INCLUDE_ABSENT)
    deadline = core.loop.time() + ANSWER_SECONDS
    try:
        response = await NameServers((address,), core.pool).call(command, deadline)
        groups = decode_cluster_info(check_response(response).body).broker_addr_table
        return NameServerAnswer(address=address, groups=groups)
    except (ClientError, RemotingError) as error:
        return NameServerAnswer(address=address, error=str(error))


async def _ask_node(core: ClientCore, address: str) -> NodeAnswer | str:
    try:
        deadline = core.loop.time() + ANSWER_SECONDS
        response = await core.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, deadline=deadline)
        return _read(check_response(response).body)
    except (ClientError, RemotingError) as error:
        return str(error)


def _read(body: bytes) -> NodeAnswer:
    table = decode_fastjson_body(KVTable, body).table
    uptime_ms = table.get("dledgerUptimeMs", "")
    try:
        return NodeAnswer(
            version=table.get("brokerVersionDesc"),
            uptime_s=int(uptime_ms) // _SECOND_MS if uptime_ms.isascii() and uptime_ms.isdecimal() else None,
            is_draining=table.get("dledgerDraining") == "true",
            addresses=msgspec.json.decode(table.get("dledgerAddresses", "{}"), type=dict[str, str]),
            http=table.get("dledgerHttp"),
            report=msgspec.json.decode(table["dledgerStatus"], type=NodeReport) if "dledgerStatus" in table else None,
        )
    except msgspec.MsgspecError:
        return NodeAnswer(version=table.get("brokerVersionDesc"))
