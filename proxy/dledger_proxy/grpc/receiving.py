"""Requests of consumers: ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

All are pops and what follows them, so any number of clients share a group. A push consumer's messages (`auto_renew`)
are leased: brokers hide them while heartbeats of that client come, through whichever proxy. The lease begins once the
messages have reached the client (`confirmations`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from dledger_client.cluster.surroundings import wall_ms
from dledger_client.errors import ClientError
from dledger_remoting.pop import MAX_POP_MESSAGES

from ..backends import Backends
from .answers import Refusal, ok, refusal_of, status
from .callers import Caller, group_name, topic_name
from .definition import messaging_pb2 as pb
from .filters import subscription_of
from .incoming import add_delivery, incoming, milliseconds_of, timestamp
from .pops import Popped, PopQuery, Pops
from .tokens import Receipt, decode_token, encode_token

MIN_RECEIVE_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
MAX_POLL_SECONDS: Final = 20.0
"""Maximum time in seconds that a request waits for a message."""
ANSWER_SECONDS: Final = 0.5
"""Time in seconds that is left of a request's deadline for its answer to arrive."""
MAX_ATTEMPT_CHARS: Final = 128
MAX_ACKS: Final = 1_024
"""Maximum number of messages that one request acknowledges."""


class Receiving:
    """Gives messages out, and takes their acknowledgements."""

    def __init__(self, backends: Backends, pops: Pops) -> None:
        self._backends = backends
        self._pops = pops

    async def receive(
        self, caller: Caller, request: pb.ReceiveMessageRequest, reaches: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        """Yield a status, the messages, and the time of their delivery.

        `reaches` is called after that, for messages whose lease begins with their arrival. It ends the answer, and
        returns whether the client has received all of it.
        """
        queue = request.message_queue
        topic, group = topic_name(queue.topic), group_name(request.group)
        if not 1 <= request.batch_size <= MAX_POP_MESSAGES:
            raise Refusal(pb.BAD_REQUEST, f"batch_size {request.batch_size}: 1 to {MAX_POP_MESSAGES} is expected")
        until = self._poll_until(caller, request)
        invisible_ms = 0 if request.auto_renew else _invisible_ms(request)
        wanted = subscription_of(topic, request.filter_expression)
        if len(request.attempt_id) > MAX_ATTEMPT_CHARS:
            raise Refusal(pb.BAD_REQUEST, f"attempt_id has at most {MAX_ATTEMPT_CHARS} characters")
        deadline = self._backends.deadline(caller.deadline)
        settings = await self._backends.group(group, topic, deadline)
        if not settings.consume_enable:
            raise Refusal(pb.FORBIDDEN, f"group {group} may not consume: its consumeEnable is false")
        broker_group = queue.broker.name or await self._any_group_of(topic, deadline)
        await self._backends.know_group(broker_group, topic, deadline)
        query = PopQuery(
            group,
            wanted,
            broker_group,
            request.batch_size,
            invisible_ms,
            caller.client_id if request.auto_renew else None,
            settings.consume_message_orderly,
            request.attempt_id or None,
            caller.ext,
        )
        popped = await self._pops.pop(query, until)
        if not popped:
            yield pb.ReceiveMessageResponse(status=status(pb.MESSAGE_NOT_FOUND, "no message came in time"))
            return
        is_handed_out = False
        try:
            yield pb.ReceiveMessageResponse(status=ok())
            for one in popped:
                yield pb.ReceiveMessageResponse(message=_delivery(queue.topic, group, topic, one))
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(wall_ms()))
            is_handed_out = True
            if any(one.awaits_confirmation for one in popped) and await reaches():
                self._pops.confirm(query, popped)
        finally:
            # A client drops the messages of an answer that does not end, and no lease must keep them hidden.
            if not is_handed_out:
                self._pops.give_back(query, popped)

    async def ack(self, caller: Caller, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """Acknowledge messages. Returns one result for each."""
        topic, group = topic_name(request.topic), group_name(request.group)
        if not 1 <= len(request.entries) <= MAX_ACKS:
            raise Refusal(pb.BAD_REQUEST, f"{len(request.entries)} entries: 1 to {MAX_ACKS} are expected")
        deadline = self._backends.deadline(caller.deadline)
        results = await asyncio.gather(*(self._ack(caller, group, topic, entry, deadline) for entry in request.entries))
        codes = {result.status.code for result in results}
        overall = results[0].status if len(codes) == 1 else status(pb.MULTIPLE_RESULTS)
        return pb.AckMessageResponse(status=overall, entries=results)

    async def change_invisible(
        self, caller: Caller, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        """Hide a message for a time from now on. Returns the handle that replaces the given one."""
        topic, group = topic_name(request.topic), group_name(request.group)
        invisible_ms = milliseconds_of(request.invisible_duration)
        if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
            raise Refusal(
                pb.ILLEGAL_INVISIBLE_TIME, f"invisible_duration is {invisible_ms} ms: 0 to {MAX_INVISIBLE_MS} expected"
            )
        receipt = _receipt(request.receipt_handle, group, topic)
        deadline = self._backends.deadline(caller.deadline)
        await self._backends.know_group(receipt.broker_group, topic, deadline)
        point = await self._pops.hide(group, topic, receipt.point, invisible_ms, caller.ext, deadline)
        if point is None:
            raise Refusal(
                pb.INVALID_RECEIPT_HANDLE, "the invisible time of this delivery is over: the message comes again"
            )
        handle = encode_token(Receipt.of(point, receipt.position), group, topic)
        return pb.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=handle)

    async def forward(
        self, caller: Caller, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Make a message a dead letter of its group, and acknowledge it.

        The copy is stored first. If the proxy dies in between, the message comes again and may be copied twice.
        """
        topic, group = topic_name(request.topic), group_name(request.group)
        receipt = _receipt(request.receipt_handle, group, topic)
        deadline = self._backends.deadline(caller.deadline)
        await self._backends.know_group(receipt.broker_group, topic, deadline)
        # A late repetition must make no second copy: only a delivery that still holds may be buried.
        point = await self._pops.hide(group, topic, receipt.point, BURIAL_MS, caller.ext, deadline)
        if point is None:
            raise Refusal(
                pb.INVALID_RECEIPT_HANDLE, "the invisible time of this delivery is over: the message comes again"
            )
        await self._pops.bury(group, topic, point, receipt.position, caller.ext, deadline)
        await self._pops.ack(group, topic, point, caller.ext, deadline)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())

    # ---------------------------------------------------------------- private

    async def _ack(
        self, caller: Caller, group: str, topic: str, entry: pb.AckMessageEntry, deadline: float
    ) -> pb.AckMessageResultEntry:
        result = pb.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        try:
            receipt = _receipt(entry.receipt_handle, group, topic)
            await self._backends.know_group(receipt.broker_group, topic, deadline)
            is_done = await self._pops.ack(group, topic, receipt.point, caller.ext, deadline)
        except Refusal as refusal:
            result.status.CopyFrom(refusal.status)
        except ClientError as error:
            result.status.CopyFrom(refusal_of(error).status)
        else:
            text = "this delivery is over: its time has passed, it has a newer handle, or it was acknowledged before"
            result.status.CopyFrom(ok() if is_done else status(pb.INVALID_RECEIPT_HANDLE, text))
        return result

    async def _any_group_of(self, topic: str, deadline: float) -> str:
        route = await self._backends.route(topic, deadline)
        if not route.readable:
            raise Refusal(pb.FORBIDDEN, f"topic {topic} has no queue that can be read")
        return route.readable[wall_ms() % len(route.readable)].broker_group

    def _poll_until(self, caller: Caller, request: pb.ReceiveMessageRequest) -> float:
        """Return when a request that finds nothing is answered. Raises `Refusal` if it has no time at all."""
        now = asyncio.get_running_loop().time()
        if caller.deadline is not None and caller.deadline - now <= ANSWER_SECONDS:
            raise Refusal(
                pb.ILLEGAL_POLLING_TIME,
                f"the request has less than {ANSWER_SECONDS:g} s left of its deadline: ask for more",
            )
        seconds = MAX_POLL_SECONDS
        if request.HasField("long_polling_timeout"):
            seconds = max(0.0, min(milliseconds_of(request.long_polling_timeout) / 1_000, MAX_POLL_SECONDS))
        until = now + seconds
        return until if caller.deadline is None else min(until, caller.deadline - ANSWER_SECONDS)


BURIAL_MS: Final = 10_000
"""Time in ms for which a message is hidden while its copy for the dead letters is stored."""


def _delivery(resource: pb.Resource, group: str, topic: str, popped: Popped) -> pb.Message:
    message = incoming(resource, popped.message)
    message.system_properties.delivery_attempt = popped.deliveries + 1
    handle = encode_token(Receipt.of(popped.point, popped.message.physical_offset), group, topic)
    add_delivery(message, handle, popped.point.invisible_ms)
    return message


def _receipt(handle: str, group: str, topic: str) -> Receipt:
    """Return the delivery that a handle stands for. Raises `Refusal`."""
    try:
        receipt = decode_token(Receipt, handle, group, topic)
        receipt.point  # noqa: B018 - refuses a retry flag of another version
    except ValueError as error:
        raise Refusal(
            pb.INVALID_RECEIPT_HANDLE,
            f"the receipt handle cannot be used: {error}; give back the newest one as it came",
        ) from error
    return receipt


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    milliseconds = milliseconds_of(request.invisible_duration)
    if not MIN_RECEIVE_INVISIBLE_MS <= milliseconds <= MAX_INVISIBLE_MS:
        raise Refusal(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"invisible_duration is {milliseconds} ms: {MIN_RECEIVE_INVISIBLE_MS} to {MAX_INVISIBLE_MS} expected",
        )
    return milliseconds
