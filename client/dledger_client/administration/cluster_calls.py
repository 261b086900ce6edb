"""Calls of an `Admin` to a whole cluster: to the leaders of its broker groups, and to its name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from dledger_remoting.bodies import decode_fastjson_body, encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import InvalidParameter, RemotingError
from dledger_remoting.headers import IncludeAbsentHeader, encode_ext
from dledger_remoting.quotas import Quota, QuotaList, QuotaRow
from dledger_remoting.resets import AT_END, CloneOffsetHeader, ResetOffsetHeader, decode_reset
from dledger_remoting.route import ClusterInfo
from dledger_remoting.signatures import Credentials

from ..arguments import above_zero
from ..cluster.core import ClientCore, check_response
from ..cluster.nameservers import parse_addresses
from ..consuming.offsets import StartFrom
from ..errors import ClientClosedError, InvalidArgumentError, NoBrokerError, refusal
from ..messages import MessageQueue
from ..tls import Tls

BodyT = TypeVar("BodyT")

INCLUDE_ABSENT: Final = encode_ext(IncludeAbsentHeader(include_absent=True))


class Opening:
    """Start and close of an administrator. `name` is its class's name, for the error of one that was not started."""

    def __init__(
        self,
        name: str,
        name_servers: str | Sequence[str],
        timeout: float,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        above_zero(timeout=timeout)
        self._name = name
        self._name_servers = parse_addresses(name_servers)
        self._timeout = timeout
        self._credentials = credentials
        self._tls = tls
        self._calls: ClusterCalls | None = None

    def start(self) -> None:
        """Open for calls. Raises `ClientClosedError` the second time."""
        if self._calls is not None:
            raise ClientClosedError("the admin has been started before; make another one")
        core = ClientCore(self._name_servers, credentials=self._credentials, tls=self._tls)
        self._calls = ClusterCalls(core, self._timeout)
        core.start()

    async def close(self) -> None:
        """Close all connections."""
        if self._calls is not None:
            await self._calls.core.close()

    @property
    def calls(self) -> ClusterCalls:
        """Calls to the cluster. Raises `ClientClosedError` before the start."""
        if self._calls is None:
            raise ClientClosedError(f"the admin is not started: use 'async with {self._name}(...)'")
        return self._calls


class ClusterCalls:
    """Calls to a cluster.

    Each has `timeout` seconds for all its attempts. Errors are those of `ClientCore.call_leader`.
    """

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self.core = core
        self._timeout = timeout

    def deadline(self) -> float:
        """Return the deadline of a call that begins now, by the event loop's clock."""
        return self.core.loop.time() + self._timeout

    async def cluster_info(self) -> ClusterInfo:
        """Return all broker groups. Absent groups have no address."""
        response = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, INCLUDE_ABSENT)
        return decode(ClusterInfo, response.body)

    async def ask_name_server(self, code: int, ext: Mapping[str, str]) -> RemotingCommand:
        """Return the answer of any name server. Raises `RefusedError` unless the answer reports success."""
        command = RemotingCommand(code, ext=dict(ext))
        return check_response(await self.core.name_servers.call(command, self.deadline()))

    async def tell_name_servers(self, code: int, ext: Mapping[str, str]) -> list[RemotingCommand]:
        """Return the answers of all name servers.

        After all were told, the error of the first that could not be told is raised.
        """
        core = self.core
        answers = await asyncio.gather(
            *(core.call(address, code, ext, deadline=self.deadline()) for address in core.name_servers.addresses),
            return_exceptions=True,
        )
        responses: list[RemotingCommand] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            responses.append(answer)
        return responses

    async def ask_leaders(
        self,
        names: Sequence[str],
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        accept: frozenset[int] = frozenset(),
    ) -> dict[str, RemotingCommand]:
        """Return the answers of the leaders of several broker groups."""
        core = self.core
        deadline = self.deadline()
        answers = await asyncio.gather(
            *(
                core.call_leader(core.routes.group(name), code, ext, body, deadline=deadline, accept=accept)
                for name in names
            )
        )
        return dict(zip(names, answers, strict=True))

    async def group_names(self, wanted: Sequence[str] | None) -> list[str]:
        """Return the names of all broker groups, or the wanted names. Stores the groups' addresses for later calls."""
        core = self.core
        groups = (await self.cluster_info()).broker_addr_table
        names = sorted(groups) if wanted is None else list(wanted)
        for name in names:
            if name not in groups:
                raise InvalidArgumentError(f"broker group {name!r} is not registered, there are {sorted(groups)}")
            core.routes.group(name).update_from_route(groups[name].cluster, groups[name].broker_addrs)
        if not names:
            raise NoBrokerError("no broker group is registered with the name server")
        absent = [name for name in names if not groups[name].broker_addrs]
        if absent:
            raise NoBrokerError(absence(absent))
        return names


def absence(groups: Sequence[str]) -> str:
    """Return a text that no node of these broker groups is registered, and what to do."""
    return (
        f"no node of broker group {', '.join(groups)} is registered: start one, "
        "or use `dledger cluster forget` if the group is gone for good"
    )


def decode(body_type: type[BodyT], body: bytes) -> BodyT:
    """Decode an answer's body. Raises `RefusedError` if it cannot be read."""
    try:
        return decode_fastjson_body(body_type, body)
    except RemotingError as error:
        raise refusal(error) from error


_NOT_SUPPORTED_CODES: Final = frozenset({int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})
_FIRST_TIMESTAMP: Final = 0


async def reset_group(
    calls: ClusterCalls, group: str, topic: str, to: StartFrom, broker_groups: Sequence[str], queue_id: int = -1
) -> dict[MessageQueue, int] | None:
    """Move the group in a topic's queues and return its new offsets.

    Returns None if the version of a broker cannot notify the members. Other broker groups may have moved it by then.
    """
    timestamp = _FIRST_TIMESTAMP if to == "first" else AT_END if to == "last" else to
    header = encode_ext(ResetOffsetHeader(topic, group, timestamp, is_force=True, queue_id=queue_id))
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    answers = await calls.ask_leaders(broker_groups, code, header, accept=_NOT_SUPPORTED_CODES)
    if any(answer.code != ResponseCode.SUCCESS for answer in answers.values()):
        return None
    new_offsets: dict[MessageQueue, int] = {}
    try:
        for answer in answers.values():
            for queue, offset in decode_reset(bytes(answer.body)).items():
                new_offsets[MessageQueue(queue.topic, queue.broker_name, queue.queue_id)] = offset
    except RemotingError as error:
        raise refusal(error) from error
    return new_offsets


async def clone_group(calls: ClusterCalls, source: str, target: str, topic: str | None) -> None:
    """Give one group the offsets of another, on every broker group."""
    header = encode_ext(CloneOffsetHeader(source, target, topic or "", offline=True))
    await calls.ask_leaders(await calls.group_names(None), RequestCode.CLONE_GROUP_OFFSET, header)


_LIVE_FIELD: Final = "dledgerLive"


async def live_settings(calls: ClusterCalls, broker_groups: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the live settings by broker group.

    Raises `RefusedError`, for example from brokers without live settings.
    """
    answers = await calls.ask_leaders(broker_groups, RequestCode.GET_BROKER_CONFIG, {})
    settings: dict[str, dict[str, str]] = {}
    for name, answer in answers.items():
        text = (answer.ext or {}).get(_LIVE_FIELD, "{}")
        try:
            settings[name] = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise refusal(InvalidParameter(f"{_LIVE_FIELD} of {name} cannot be read: {error}")) from error
    return settings


async def set_live(calls: ClusterCalls, values: Mapping[str, str], broker_groups: Sequence[str]) -> None:
    """Have the leaders change settings.

    Raises `InvalidArgumentError` for a key or value that does not fit a line of the request.
    """
    for key, text in values.items():
        if not key.strip() or "=" in key or any("\n" in part or "\r" in part for part in (key, text)):
            raise InvalidArgumentError(f"setting {key!r} = {text!r}, expected a key and a value of one line each")
    body = "".join(f"{key}={text}\n" for key, text in values.items()).encode()
    await calls.ask_leaders(broker_groups, RequestCode.UPDATE_BROKER_CONFIG, {}, body)


async def put_quota(calls: ClusterCalls, quota: Quota, broker_groups: Sequence[str]) -> None:
    """Have the leaders set a quota, or remove it if it has no limit."""
    await calls.ask_leaders(broker_groups, RequestCode.PUT_QUOTA, {}, encode_body(quota))


async def quotas(calls: ClusterCalls, broker_groups: Sequence[str]) -> dict[str, list[QuotaRow]]:
    """Return the quotas by broker group."""
    answers = await calls.ask_leaders(broker_groups, RequestCode.LIST_QUOTAS, {})
    return {name: decode(QuotaList, answer.body).quotas for name, answer in answers.items()}
