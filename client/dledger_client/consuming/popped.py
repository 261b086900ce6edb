"""Popped messages: decoder of answers to pops, and the check points by which messages are acknowledged."""

from __future__ import annotations

import logging

import msgspec

from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import BodyError, InvalidParameter
from dledger_remoting.headers import decode_ext
from dledger_remoting.headers_pop import PopResponseHeader
from dledger_remoting.pop import (
    ORDERED_REVIVE_QUEUE,
    CheckPoint,
    Retry,
    parse_check_point,
    parse_start_offset_info,
    pop_retry_topic,
)
from dledger_remoting.properties import POP_CHECK_POINT, parse_properties
from dledger_remoting.record import MessageRecord, iter_records

from ..errors import InvalidArgumentError
from ..messages import MessageQueue, ReceivedMessage, received_message
from ..namespaces import NO_NAMESPACE, Namespace

logger = logging.getLogger(__name__)


def popped_messages(
    response: RemotingCommand, group: str, topic: str, broker_group: str, namespace: Namespace = NO_NAMESPACE
) -> list[ReceivedMessage]:
    """Return the messages that `group` has popped of `topic`, each with its check point in the property POP_CK.

    The arguments are full names; names in the messages are names within the namespace. A message's queue is the one
    from which it was read, a retry topic's for messages that come again. A message whose body cannot be read is left
    out, and redelivered until it is a dead letter. An error for the whole answer would turn the other messages into
    dead letters, too. Raises `RemotingError` if the answer cannot be read.
    """
    header = decode_ext(PopResponseHeader, response.ext)
    messages: list[ReceivedMessage] = []
    for record in iter_records(response.body):
        text = parse_properties(record.properties).get(POP_CHECK_POINT)
        point = _make_check_point(header, record, broker_group) if text is None else parse_check_point(text)
        read_from = pop_retry_topic(group, topic, point.retry)
        queue = MessageQueue(read_from, broker_group, point.queue_id)
        try:
            message = received_message(record, queue, namespace=namespace)
        except BodyError as error:
            logger.warning("the message at offset %d of %s comes again: %s", record.queue_offset, queue, error.remark)
            continue
        properties = {**message.properties, POP_CHECK_POINT: point.text}
        messages.append(msgspec.structs.replace(message, properties=properties))
    return messages


def check_point_of(message: ReceivedMessage[object]) -> CheckPoint:
    """Return the check point of a popped message. Raises `InvalidArgumentError` if it has none."""
    text = message.properties.get(POP_CHECK_POINT)
    if text is None:
        raise InvalidArgumentError("the message was not received by a SimpleConsumer: it has no POP_CK property")
    try:
        return parse_check_point(text)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error


def _make_check_point(header: PopResponseHeader, record: MessageRecord, broker_group: str) -> CheckPoint:
    """Return the check point of a message of the topic itself. The answer says where its delivery begins.

    Raises `InvalidParameter` if that cannot be read.
    """
    starts = {queue[:2]: queue[2] for queue in parse_start_offset_info(header.start_offset_info or "")}
    return CheckPoint(
        start_offset=starts.get((Retry.NONE, record.queue_id), record.queue_offset),
        pop_time_ms=header.pop_time,
        invisible_ms=header.invisible_time,
        is_ordered=header.revive_qid == ORDERED_REVIVE_QUEUE,
        retry=Retry.NONE,
        broker_name=broker_group,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
    )
