"""Deliveries of one producer: its requests on their way, within the limits of what may be under way, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger_remoting.codes import ResponseCode

from ..cluster.core import ClientCore
from ..cluster.routes import queue_of_key
from ..errors import ClientError, DeadlineError, SendError
from ..messages import MessageQueue
from ..results import SendResult
from .batches import Part
from .lanes import Lanes
from .sender import QueueChoice, Sender
from .tracing import Tracer
from .window import InFlightWindow
from .wire import Outgoing, results_in


class Deliveries:
    """Delivers the requests of one producer. Belongs to one event loop.

    `window` limits the requests under way. Requests with an ordering key go one at a time for each queue. `group` is
    the group that `tracer`, if there is one, names in traces.
    """

    def __init__(
        self, core: ClientCore, sender: Sender, window: InFlightWindow, group: str, tracer: Tracer | None
    ) -> None:
        self._core = core
        self.sender = sender
        self._window = window
        self._group = group
        self._tracer = tracer
        self._lanes = Lanes()
        self.send = self._send if tracer is None else self._send_traced
        """Sends one request to a queue of choice. Returns one result per message. Raises `SendError`."""

    async def send_part(self, topic: str, part: Part, queue: MessageQueue | None, deadline: float) -> list[SendResult]:
        """Send the requests of one part of a batch, one after another, to one queue.

        Raises `SendError`, which has the results of the requests before.
        """
        if part.ordering_key is not None:
            return await self.send_in_lane(part.requests, topic, part.ordering_key, deadline)
        results: list[SendResult] = []
        choose = self.choice(queue, part.unique_key if part.requests[0].idempotent else None)
        for request in part.requests:
            await self._send_next(request, choose, deadline, results)
            last = results[-1]
            choose = self.choice(MessageQueue(last.topic, last.broker_group, last.queue_id))
        return results

    async def send_in_lane(
        self, requests: Sequence[Outgoing], topic: str, ordering_key: str, deadline: float
    ) -> list[SendResult]:
        """Send requests one after another, behind earlier ones to the queue of their key. Raises `SendError`."""
        results: list[SendResult] = []
        async with self._lanes.turn(self.sender, topic, ordering_key, deadline) as choose:
            for request in requests:
                await self._send_next(request, choose, deadline, results)
        return results

    async def send_oneway(self, outgoing: Outgoing, deadline: float) -> None:
        """Send a request to a leader without an answer. Raises `SendError` if no leader takes it in time."""
        topic, core, sender = outgoing.topic, self._core, self.sender
        try:
            queue = sender.next_queue(await sender.route(topic, deadline))
            address = await core.routes.group(queue.broker_group).target(deadline)
            connection = await core.pool.get(address, deadline)
            async with asyncio.timeout_at(deadline):
                await connection.writable()
            if core.loop.time() >= deadline:  # only a wait notices the deadline, and nothing above had to wait
                raise TimeoutError
            sender.send_oneway(outgoing, queue, address)
        except TimeoutError:
            error = DeadlineError("no leader took it before the deadline")
            raise SendError(topic, 0, "not_sent", error) from error
        except ClientError as error:
            raise SendError(topic, 0, "not_sent", error) from error

    def choice(self, queue: MessageQueue | None, unique_key: str | None = None) -> QueueChoice:
        """Return the function that chooses the queue of a request: `queue`, or the queue of the key, or the next."""
        if queue is not None:
            return lambda _: MessageQueue(*queue)
        return self.sender.next_queue if unique_key is None else lambda route: queue_of_key(route, unique_key)

    async def _send(self, outgoing: Outgoing, choose: QueueChoice, deadline: float) -> list[SendResult]:
        size = outgoing.size_bytes
        try:
            await self._window.acquire(size, deadline)
        except TimeoutError:
            error = DeadlineError("too many sends are under way, and none ended before the deadline")
            raise SendError(outgoing.topic, 0, "not_sent", error) from error
        try:
            delivered = await self.sender.deliver(outgoing, choose, deadline)
        finally:
            self._window.release(size)
        return results_in(
            outgoing,
            delivered.queue.broker_group,
            delivered.placement,
            replicated=delivered.code == ResponseCode.SUCCESS,
            maybe_stored=delivered.maybe_stored,
        )

    async def _send_traced(self, outgoing: Outgoing, choose: QueueChoice, deadline: float) -> list[SendResult]:
        assert self._tracer is not None
        return await self._tracer.traced(outgoing, self._group, self._send(outgoing, choose, deadline))

    async def _send_next(
        self, outgoing: Outgoing, choose: QueueChoice, deadline: float, results: list[SendResult]
    ) -> None:
        """Send one of several requests. An error carries the results of the requests before it."""
        try:
            results += await self.send(outgoing, choose, deadline)
        except SendError as error:
            error.stored = tuple(results)
            raise
