"""Pops in the name of gRPC clients, and what follows them: acknowledgements, other invisible times, dead letters.

A pop hides its messages from their group, even if nobody waits for it any more. The client may be gone, or the attempt
was given up before its answer came. The messages of such a pop go back to the group at once, and count as undelivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dledger_client.cluster.core import busy_pause_seconds
from dledger_client.cluster.surroundings import wall_ms
from dledger_client.consuming.popped import check_point_of, popped_messages
from dledger_client.errors import ClientError, refusal
from dledger_client.messages import ReceivedMessage
from dledger_client.subscriptions import Subscription
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import ConsumerSendBackHeader, decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    CONFIRMS_FIELD,
    LEASE_FIELD,
    UNCONFIRMED,
    UNTAKEN_FIELD,
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    PopHeader,
    PopResponseHeader,
)
from dledger_remoting.pop import CheckPoint, pop_retry_topic

from ..backends import Backends
from .confirmations import Confirmations, Holder

POLL_SECONDS: Final = 2.0
"""Maximum time in seconds that one request waits at a broker, so that a lost leader is noticed meanwhile."""
GIVE_BACK_SECONDS: Final = 3.0
"""Time limit in seconds for giving a message back. Otherwise it comes again after its invisible time."""
LEASE_MS: Final = 60_000
"""Time in ms for which leased messages stay hidden after their client's last heartbeat."""
UNLEASED_MS: Final = 15 * 60_000
"""Invisible time in ms of a push consumer's messages where brokers know no leases, as its classic time-out is."""
LEASE_RETRY_SECONDS: Final = 60.0
"""Interval in seconds after which brokers without leases are asked for one again."""
_ANY_QUEUE: Final = -1
_FROM_END: Final = 1
_NO_MESSAGE_CODES: Final = frozenset({int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.POLLING_FULL)})
_NOT_HELD_CODES: Final = frozenset({int(ResponseCode.NO_MESSAGE)})
_LEASED: Final = frozenset({"true", UNCONFIRMED})
"""Answers of brokers that know leases."""
_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_DEAD_LETTER_LEVEL: Final = -1

logger = logging.getLogger(__name__)


class PopQuery(msgspec.Struct, frozen=True):
    """Messages that a client wants.

    `lease` is the id of a client whose heartbeats hide them; without one they are hidden for `invisible_ms`. With
    `in_order`, `attempt_id` names a pop that is repeated because its answer was lost.
    """

    group: str
    subscription: Subscription
    broker_group: str
    max_messages: int
    invisible_ms: int
    lease: str | None = None
    in_order: bool = False
    attempt_id: str | None = None
    ext: Mapping[str, str] = {}
    """Ext fields of the client for which it is asked."""


class Popped(msgspec.Struct, frozen=True):
    """One popped message. `deliveries` counts those before this one.

    If it `awaits_confirmation`, its lease begins with `Pops.confirm`.
    """

    message: ReceivedMessage
    point: CheckPoint
    deliveries: int
    awaits_confirmation: bool = False


class Pops:
    """Pops of a proxy. Belongs to one event loop."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._no_leases_until: dict[str, float] = {}
        self._is_stopping = False
        self._background: set[asyncio.Task[None]] = set()
        self._confirmations = Confirmations(backends, LEASE_MS)

    def stop_waiting(self) -> None:
        """Answer pops that wait for messages, at the latest after `POLL_SECONDS`."""
        self._is_stopping = True

    async def close(self) -> None:
        """Wait until messages that nobody wants any more are given back, and what has arrived is confirmed."""
        await self._confirmations.close()
        if self._background:
            await asyncio.wait(self._background, timeout=GIVE_BACK_SECONDS)

    async def pop(self, query: PopQuery, until: float) -> list[Popped]:
        """Return messages, waiting for the first until this time of the event loop's clock; none without any.

        Raises `ClientError`. If the call is cancelled, its messages go back to the group.
        """
        loop, refusals = asyncio.get_running_loop(), 0
        while True:
            poll_seconds = 0.0 if self._is_stopping else max(0.0, min(POLL_SECONDS, until - loop.time()))
            task = loop.create_task(self._pop_once(query, poll_seconds))
            try:
                messages = await asyncio.shield(task)
            except asyncio.CancelledError:
                self._keep(self._give_back_of(task, query), "return of popped messages")
                raise
            if messages is None:  # a refused lease: asked again without one
                refusals += 1
                await asyncio.sleep(busy_pause_seconds(refusals))
                continue
            if messages or loop.time() >= until or self._is_stopping:
                return messages

    def give_back(self, query: PopQuery, messages: Sequence[Popped]) -> None:
        """Give messages back to their group in the background, because their client has not got them."""
        self._give_back(query, messages)

    def confirm(self, query: PopQuery, messages: Sequence[Popped]) -> None:
        """Begin the lease of messages in the background, because their client has got them."""
        holder = Holder(query.lease or "", query.broker_group, query.group, query.subscription.topic)
        points = [one.point for one in messages if one.awaits_confirmation]
        self._confirmations.arrived(holder, points, query.ext)

    async def settle(self, client_id: str) -> None:
        """Wait until the leases of a client have begun, because it is about to end."""
        await self._confirmations.settle(client_id)

    async def ack(self, group: str, topic: str, point: CheckPoint, ext: Mapping[str, str], deadline: float) -> bool:
        """Acknowledge a message. False if its invisible time is over, or it was acknowledged before."""
        stored = pop_retry_topic(group, topic, point.retry)
        header = AckHeader(group, stored, point.queue_id, point.text, point.queue_offset)
        answer = await self._backends.ask(
            point.broker_name,
            RequestCode.ACK_MESSAGE,
            {**encode_ext(header), **ext},
            deadline=deadline,
            accept=_NOT_HELD_CODES,
        )
        self._confirmations.done(group, topic, point)
        return answer.code == ResponseCode.SUCCESS

    async def hide(
        self, group: str, topic: str, point: CheckPoint, invisible_ms: int, ext: Mapping[str, str], deadline: float
    ) -> CheckPoint | None:
        """Hide a message for a time from now on. Returns its next check point, None where `ack` returns False."""
        stored = pop_retry_topic(group, topic, point.retry)
        header = ChangeInvisibleHeader(group, stored, point.queue_id, point.text, point.queue_offset, invisible_ms)
        answer = await self._backends.ask(
            point.broker_name,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            {**encode_ext(header), **ext},
            deadline=deadline,
            accept=_NOT_HELD_CODES,
        )
        self._confirmations.done(group, topic, point)
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            changed = decode_ext(ChangeInvisibleResponseHeader, answer.ext)
        except RemotingError as error:
            raise refusal(error) from error
        return msgspec.structs.replace(
            point,
            start_offset=point.queue_offset,
            pop_time_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
        )

    async def bury(
        self, group: str, topic: str, point: CheckPoint, position: int, ext: Mapping[str, str], deadline: float
    ) -> None:
        """Store a copy of a message in the dead letter topic of its group. Raises `ClientError`."""
        header = ConsumerSendBackHeader(
            offset=position,
            group=group,
            delay_level=_DEAD_LETTER_LEVEL,
            origin_topic=topic,
            unit_mode=False,
            max_reconsume_times=0,
        )
        await self._backends.ask(
            point.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, {**encode_ext(header), **ext}, deadline=deadline
        )

    # ---------------------------------------------------------------- private

    async def _pop_once(self, query: PopQuery, poll_seconds: float) -> list[Popped] | None:
        """Ask once. Returns None if the brokers refuse leases, and are asked without from now on."""
        loop, lease = asyncio.get_running_loop(), query.lease
        if lease is not None and loop.time() < self._no_leases_until.get(query.broker_group, 0.0):
            lease = None
        invisible_ms = query.invisible_ms if query.lease is None else UNLEASED_MS if lease is None else LEASE_MS
        subscription = query.subscription
        header = PopHeader(
            query.group,
            subscription.topic,
            _ANY_QUEUE,
            query.max_messages,
            invisible_ms,
            int(poll_seconds * 1_000),
            wall_ms(),
            _FROM_END,
            subscription.expression_type,
            subscription.expression,
            query.in_order,
            query.attempt_id if query.in_order else None,
        )

        def give_back_late(answer: RemotingCommand) -> None:
            self._give_back(query, self._decode(answer, query))

        leasing = {} if lease is None else {LEASE_FIELD: lease, CONFIRMS_FIELD: "true"}
        answer = await self._backends.ask(
            query.broker_group,
            RequestCode.POP_MESSAGE,
            {**encode_ext(header), **query.ext, **leasing},
            deadline=self._backends.deadline() + poll_seconds,
            accept=_NO_MESSAGE_CODES if lease is None else _NO_MESSAGE_CODES | {_BUSY},
            on_late=give_back_late,
        )
        if answer.code == _BUSY:
            if "lease" in (answer.remark or ""):
                self._no_leases_until[query.broker_group] = loop.time() + LEASE_RETRY_SECONDS
            return None
        if answer.code == ResponseCode.SUCCESS and lease is not None and answer.ext.get(LEASE_FIELD) not in _LEASED:
            self._no_leases_until[query.broker_group] = loop.time() + LEASE_RETRY_SECONDS
        return self._wanted(self._decode(answer, query), query)

    def _decode(self, answer: RemotingCommand, query: PopQuery) -> list[Popped]:
        """Return the messages of an answer. Raises `RefusedError` if it cannot be read."""
        if answer.code != ResponseCode.SUCCESS:
            return []
        topic = query.subscription.topic
        try:
            messages = popped_messages(answer, query.group, topic, query.broker_group)
            info = decode_ext(PopResponseHeader, answer.ext).order_count_info
        except RemotingError as error:
            raise refusal(error) from error
        counts = _counts(info or "")
        popped: list[Popped] = []
        for message in messages:
            point = check_point_of(message)
            of_queue = counts.get(f"{point.retry} {point.queue_id}", message.reconsume_times)
            deliveries = counts.get(f"{point.retry} qo{point.queue_id}%{point.queue_offset}", of_queue)
            popped.append(Popped(message, point, deliveries, answer.ext.get(LEASE_FIELD) == UNCONFIRMED))
        return popped

    def _wanted(self, popped: Sequence[Popped], query: PopQuery) -> list[Popped]:
        """Return the messages that the group wants. The others are acknowledged in the background.

        Brokers compare only the codes of tags, and two tags may have the same code.
        """
        tags, wanted = query.subscription.tags, []
        for one in popped:
            if tags.matches_tag(one.message.tags):
                wanted.append(one)
            else:
                self._keep(self._reject(query, one), "acknowledgement of an unwanted message")
        return wanted

    async def _reject(self, query: PopQuery, popped: Popped) -> None:
        deadline = asyncio.get_running_loop().time() + GIVE_BACK_SECONDS
        try:
            await self.ack(query.group, query.subscription.topic, popped.point, query.ext, deadline)
        except ClientError as error:
            logger.info("event=unwanted_message_not_acknowledged queue=%s reason=%r", popped.message.queue, str(error))

    async def _give_back_of(self, task: asyncio.Task[list[Popped] | None], query: PopQuery) -> None:
        """Give back what a pop brings that nobody waits for any more."""
        try:
            self._give_back(query, await task or ())
        except ClientError as error:
            logger.debug("event=abandoned_pop_failed reason=%r", str(error))

    def _give_back(self, query: PopQuery, messages: Sequence[Popped]) -> None:
        for popped in messages:
            self._keep(self._return(query, popped), "return of a popped message")

    async def _return(self, query: PopQuery, popped: Popped) -> None:
        point, topic = popped.point, popped.message.queue.topic
        header = ChangeInvisibleHeader(query.group, topic, point.queue_id, point.text, point.queue_offset, 0)
        ext = {**encode_ext(header), **query.ext, UNTAKEN_FIELD: "true"}
        deadline = asyncio.get_running_loop().time() + GIVE_BACK_SECONDS
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        try:
            await self._backends.ask(point.broker_name, code, ext, deadline=deadline, accept=_NOT_HELD_CODES)
        except ClientError as error:
            logger.info("event=message_not_given_back queue=%s reason=%r", popped.message.queue, str(error))

    def _keep(self, work: asyncio._CoroutineLike[None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _counts(info: str) -> dict[str, int]:
    """Return the deliveries before this one, by queue or by message, as an ordered pop's answer names them."""
    counts: dict[str, int] = {}
    for row in filter(None, info.split(";")):
        place, _, count = row.rpartition(" ")
        if place and count.isascii() and count.isdecimal():
            counts[place] = int(count)
    return counts
