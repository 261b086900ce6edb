"""Pull of one queue from one node: the request, and what its answer says.

| answer | result |
|---|---|
| 0 | the messages that match the tags exactly |
| 19, 20 | no message, and the offset to go on at |
| 21 | the offset lies outside the queue, or the group was reset |
| others | the error of the code |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import BodyError, error_from_response
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.headers import PullMessageHeader, PullResponseHeader, decode_ext, encode_ext
from dledger_remoting.headers_consume import PULL_SUBSCRIPTION, PULL_SUSPEND
from dledger_remoting.record import MessageRecord, iter_records

from ..cluster.core import ClientCore
from ..cluster.leaders import LEADER_ID
from ..messages import MessageQueue, ReceivedMessage, Settlement, received_message
from ..subscriptions import Subscription

_ANSWER_SECONDS: Final = 5.0
"""Time limit in seconds for an answer after the end of its long poll, after which the node is considered dead."""

_RESET_REMARK: Final = "OFFSET_RESET"
"""Remark of brokers about a reset group, RocketMQ's brokers included."""


class PullLimits(msgspec.Struct, frozen=True):
    """Limits of one pull: the number of messages, and the waiting time.

    With `finds_end`, only a pull that begins at the known end of the queue waits. Others that wait for that end then
    learn of it soon. With `keep_unreadable`, messages whose bodies cannot be read come with a `fault`.
    """

    max_messages: int = 32
    suspend_seconds: float = 15.0
    finds_end: bool = False
    keep_unreadable: bool = False


class PullResult(msgspec.Struct, frozen=True):
    """Result of a pull: the answer's code, matching messages in order, the next offset, and whether the queue ends
    there.

    `is_reset` says that the group continues at `next_offset`, and earlier reads no longer count. `next_broker_id` is
    that of the node for the next pull. `topic_created` is the present creation of the topic, given if the offset was of
    an earlier creation.
    """

    code: int
    messages: list[ReceivedMessage]
    next_offset: int
    is_end: bool
    is_reset: bool = False
    next_broker_id: int = LEADER_ID
    topic_created: int | None = None


_PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


async def pull(
    core: ClientCore,
    address: str,
    consumer_group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_messages: int,
    suspend_seconds: float,
    settle: Callable[[ReceivedMessage[object], Settlement], None] | None = None,
    keep_unreadable: bool = False,
    topic_created: int | None = None,
) -> PullResult:
    """Pull once from one node. Raises `ClientError` if it fails, `RemotingError` if it is refused."""
    header = PullMessageHeader(
        consumer_group=consumer_group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_seconds > 0 else 0),
        commit_offset=0,
        suspend_timeout_millis=int(suspend_seconds * 1000),
        sub_version=subscription.version,
        subscription=subscription.expression,
        expression_type=subscription.expression_type,
        topic_created=topic_created,
    )
    deadline = core.loop.time() + suspend_seconds + _ANSWER_SECONDS
    response = await core.call(
        *(address, RequestCode.PULL_MESSAGE, encode_ext(header)),
        deadline=deadline,
        to_leader=address == core.routes.group(queue.broker_group).leader,
    )
    if response.code not in _PULL_CODES:
        raise error_from_response(response.code, response.remark, response.ext)
    make_message = partial(received_message, settle=settle, namespace=core.namespace, keep_unreadable=keep_unreadable)
    return _pull_result(response, queue, offset, subscription.tags, make_message)


def _pull_result(
    response: RemotingCommand,
    queue: MessageQueue,
    offset: int,
    tags: TagFilter,
    make_message: Callable[[MessageRecord, MessageQueue], ReceivedMessage],
) -> PullResult:
    """Decode an answer, up to the first message that `make_message` cannot read.

    Raises `BodyError` if that message is at `offset`. A queue that ends before `offset` belongs to a topic that was
    deleted and created again. All of it is new, so reading begins at its first message, not at the answer's next
    offset.
    """
    header = decode_ext(PullResponseHeader, response.ext)
    next_offset, next_broker_id = header.next_begin_offset, header.suggest_which_broker_id
    if response.code == ResponseCode.PULL_OFFSET_MOVED and response.remark == _RESET_REMARK:
        return PullResult(response.code, [], next_offset, is_end=False, is_reset=True, next_broker_id=next_broker_id)
    if header.topic_created is not None or (
        response.code == ResponseCode.PULL_OFFSET_MOVED and offset > header.max_offset
    ):
        next_offset = header.min_offset
    messages: list[ReceivedMessage] = []
    for record in iter_records(response.body):
        if record.queue_offset < offset:
            continue
        try:
            message = make_message(record, queue)
        except BodyError as error:
            if record.queue_offset == offset:
                raise BodyError(f"the message at offset {offset} of {queue}: {error.remark}") from error
            return PullResult(response.code, messages, record.queue_offset, is_end=False, next_broker_id=next_broker_id)
        if tags.matches_tag(message.tags):
            messages.append(message)
    is_end = next_offset >= header.max_offset
    return PullResult(
        response.code,
        messages,
        next_offset,
        is_end=is_end,
        next_broker_id=next_broker_id,
        topic_created=header.topic_created,
    )
