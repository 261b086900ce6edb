"""Survey of a cluster: every name server is asked which nodes there are (106), and every node how it is (28)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from dledger_client import ClientError, Credentials, RefusedError, Tls
from dledger_client.cluster.core import ClientCore, check_response
from dledger_client.cluster.nameservers import NameServers
from dledger_remoting.bodies import KVTable, decode_fastjson_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import IncludeAbsentHeader, encode_ext
from dledger_remoting.route import decode_cluster_info

from .reports import NameServerAnswer, NodeAnswer, NodeReport, Survey

ANSWER_SECONDS: Final = 3.0
"""Time limit for each answer. All servers are asked at the same time."""

REFUSED: Final = "refuses to tell"
"""Beginning of the text that stands for a node that answers, but not this account."""

_INCLUDE_ABSENT: Final = encode_ext(IncludeAbsentHeader(include_absent=True))
_SECOND_MS: Final = 1000


async def survey(namesrv: str, credentials: Credentials | None = None, tls: Tls | None = None) -> Survey:
    """Ask all name servers and nodes, signed and over TLS if set. Missing answers are in the result, too.

    A node that no name server lists is asked too, if another node of its group tells its address.
    """
    core = ClientCore(namesrv, credentials=credentials, tls=tls)
    try:
        addresses = core.name_servers.addresses
        name_servers = list(await asyncio.gather(*(_ask_name_server(core, address) for address in addresses)))
        listed = {
            address
            for server in name_servers
            for group in (server.groups or {}).values()
            for address in group.broker_addrs.values()
        }
        nodes = await _ask_nodes(core, listed)
        reported = {
            address
            for answer in nodes.values()
            if isinstance(answer, NodeAnswer)
            for address in answer.addresses.values()
        }
        return Survey(name_servers, nodes | await _ask_nodes(core, reported - nodes.keys()))
    finally:
        await core.close()


async def _ask_nodes(core: ClientCore, addresses: Iterable[str]) -> dict[str, NodeAnswer | str]:
    ordered = sorted(addresses)
    return dict(zip(ordered, await asyncio.gather(*(_ask_node(core, address) for address in ordered)), strict=True))


async def _ask_name_server(core: ClientCore, address: str) -> NameServerAnswer:
    command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, ext=_INCLUDE_ABSENT)
    deadline = core.loop.time() + ANSWER_SECONDS
    try:
        response = await NameServers((address,), core.pool).call(command, deadline)
        info = decode_cluster_info(check_response(response).body)
        return NameServerAnswer(address=address, groups=info.broker_addr_table, refused=info.refused_groups or {})
    except (ClientError, RemotingError) as error:
        return NameServerAnswer(address=address, error=str(error))


async def _ask_node(core: ClientCore, address: str) -> NodeAnswer | str:
    try:
        deadline = core.loop.time() + ANSWER_SECONDS
        response = await core.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, deadline=deadline)
        return _parse_answer(check_response(response).body)
    except RefusedError as error:
        return f"{REFUSED}: {error}"
    except (ClientError, RemotingError) as error:
        return f"does not answer: {error}"


def _parse_answer(body: bytes) -> NodeAnswer:
    table = decode_fastjson_body(KVTable, body).table
    uptime_ms = table.get("dledgerUptimeMs", "")
    try:
        return NodeAnswer(
            version=table.get("brokerVersionDesc"),
            uptime_s=int(uptime_ms) // _SECOND_MS if uptime_ms.isascii() and uptime_ms.isdecimal() else None,
            is_draining=table.get("dledgerDraining") == "true",
            stored_per_s=_newest_rate(table.get("putTps")),
            delivered_per_s=_newest_rate(table.get("getTransferredTps")),
            addresses=msgspec.json.decode(table.get("dledgerAddresses", "{}"), type=dict[str, str]),
            gauges=msgspec.json.decode(table.get("dledgerGauges", "{}"), type=dict[str, float]),
            http=table.get("dledgerHttp"),
            report=msgspec.json.decode(table["dledgerStatus"], type=NodeReport) if "dledgerStatus" in table else None,
        )
    except msgspec.MsgspecError:
        return NodeAnswer(version=table.get("brokerVersionDesc"))


def _newest_rate(text: str | None) -> float | None:
    """Return the first of the averages over growing windows, None if there is none."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None
