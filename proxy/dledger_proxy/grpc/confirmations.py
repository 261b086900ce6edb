"""Confirmations of leases: brokers are told which messages have reached their push consumer.

Until then a message is hidden for a short time, whatever its client does (`dledger_broker.features.confirmations`). So
messages come again that are lost with a proxy, or on the way from it to the client.

Messages are confirmed after `PAUSE_SECONDS`, with one request for all deliveries of a client and topic. Messages that
are acknowledged meanwhile need no confirmation, so fast consumers cost brokers nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dledger_client.errors import ClientError
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers import encode_ext
from dledger_remoting.headers_pop import ConfirmLeaseHeader
from dledger_remoting.pop import CheckPoint, Retry, deliveries_info

from ..backends import Backends

PAUSE_SECONDS: Final = 1.0
"""Time in seconds for which confirmations are collected."""
CONFIRM_SECONDS: Final = 20.0
"""Time limit in seconds for a confirmation. Brokers hide unconfirmed messages for 30 s."""
SETTLE_SECONDS: Final = 3.0
"""Time limit in seconds for the last confirmation of a client that ends, and of a proxy that stops."""
MAX_DELIVERIES: Final = 50
"""Maximum number of deliveries that brokers take in one request."""
_NOT_HELD_CODES: Final = frozenset({int(ResponseCode.NO_MESSAGE)})

logger = logging.getLogger(__name__)


class Holder(NamedTuple):
    """Client that has messages of a topic, which its group got of a broker group."""

    client_id: str
    broker_group: str
    group: str
    topic: str


class _Name(NamedTuple):
    """Delivery of a queue, as brokers name it."""

    broker_group: str
    group: str
    topic: str
    retry: Retry
    queue_id: int
    pop_time_ms: int


class _Arrived(NamedTuple):
    """Messages of one delivery that their client has and has not acknowledged, by their offsets."""

    holder: Holder
    ext: Mapping[str, str]
    offsets: set[int]


class Confirmations:
    """Confirmations of a proxy, each a lease of `length_ms`. Belongs to one event loop."""

    def __init__(self, backends: Backends, length_ms: int) -> None:
        self._backends = backends
        self._length_ms = length_ms
        self._arrived: dict[_Name, _Arrived] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def arrived(self, holder: Holder, points: Iterable[CheckPoint], ext: Mapping[str, str]) -> None:
        """Note that messages have reached their client. `ext` are ext fields of the client for which it is asked."""
        for point in points:
            name = _name(holder.broker_group, holder.group, holder.topic, point)
            self._arrived.setdefault(name, _Arrived(holder, ext, set())).offsets.add(point.queue_offset)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._confirm_all)

    def done(self, group: str, topic: str, point: CheckPoint) -> None:
        """Note that a message needs no lease any more: it is acknowledged, or hidden for a time of its own."""
        name = _name(point.broker_name, group, topic, point)
        if (arrived := self._arrived.get(name)) is not None:
            arrived.offsets.discard(point.queue_offset)
            if not arrived.offsets:
                del self._arrived[name]

    async def settle(self, client_id: str) -> None:
        """Confirm what a client has, and wait for it. So the end of the client ends all of its leases."""
        tasks = self._confirm(name for name, one in self._arrived.items() if one.holder.client_id == client_id)
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_SECONDS)

    async def close(self) -> None:
        """Confirm what has arrived, and wait for it. Call it once nothing arrives any more."""
        if self._timer is not None:
            self._confirm_all()
        if self._asking:
            await asyncio.wait(self._asking, timeout=SETTLE_SECONDS)
        for task in self._asking:
            task.cancel()

    # ---------------------------------------------------------------- private

    def _confirm_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._confirm(self._arrived)

    def _confirm(self, names: Iterable[_Name]) -> list[asyncio.Task[None]]:
        """Confirm deliveries, one request after another for each holder. Returns the work."""
        deliveries: dict[Holder, list[tuple[Retry, int, int]]] = {}
        exts: dict[Holder, Mapping[str, str]] = {}
        for name in list(names):
            one = self._arrived.pop(name)
            exts[one.holder] = one.ext
            deliveries.setdefault(one.holder, []).append((name.retry, name.queue_id, name.pop_time_ms))
        loop, tasks = asyncio.get_running_loop(), []
        for holder, rows in deliveries.items():
            task = loop.create_task(self._ask(holder, rows, exts[holder]), name="confirmation of leases")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            tasks.append(task)
        return tasks

    async def _ask(self, holder: Holder, rows: list[tuple[Retry, int, int]], ext: Mapping[str, str]) -> None:
        deadline = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        for begin in range(0, len(rows), MAX_DELIVERIES):
            some = deliveries_info(rows[begin : begin + MAX_DELIVERIES])
            header = ConfirmLeaseHeader(holder.group, holder.topic, holder.client_id, self._length_ms, some)
            try:
                await self._backends.ask(
                    holder.broker_group,
                    RequestCode.CONFIRM_LEASE,
                    {**encode_ext(header), **ext},
                    deadline=deadline,
                    accept=_NOT_HELD_CODES,
                )
            except ClientError as error:
                logger.info(
                    "event=lease_not_confirmed group=%s topic=%s client=%s reason=%r",
                    holder.group, holder.topic, holder.client_id, str(error),
                )  # fmt: skip


def _name(broker_group: str, group: str, topic: str, point: CheckPoint) -> _Name:
    return _Name(broker_group, group, topic, point.retry, point.queue_id, point.pop_time_ms)
