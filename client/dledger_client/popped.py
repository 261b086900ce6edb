"""Popped messages: how an answer to a pop is read, and the check points by which they are acknowledged."""

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

from .errors import InvalidArgumentError
from .messages import MessageQueue, ReceivedMessage, received_message
from .namespaces import NO_NAMESPACE, Namespace

logger = logging.getLogger(__name__)


def popped_messages(
    response: RemotingCommand, group: str, topic: str, broker_group: str, namespace: Namespace = NO_NAMESPACE
) -> list[ReceivedMessage]:
    """The messages that `group` has popped of `topic`, each with its check point in the property POP_CK; these two
    names are full, those of the messages within a namespace.

    Their queue is that which they were read from: that of a retry topic for those that come again. One whose body
    cannot be read is left out, and comes again until it is a dead letter: raised for the whole answer, it would make
    dead letters of the others, too. Raises `RemotingError` if the answer cannot be read.
    """
    header = decode_ext(PopResponseHeader, response.ext)
    found: list[ReceivedMessage] = []
    for record in iter_records(response.body):
        text = parse_properties(record.properties).get(POP_CHECK_POINT)
        point = _point_in(header, record, broker_group) if text is None else parse_check_point(text)
        read_from = pop_retry_topic(group, topic, point.retry)
        queue = MessageQueue(read_from, broker_group, point.queue_id)
        try:
            message = received_message(record, queue, namespace=namespace)
        except BodyError as error:
            logger.warning("the message at offset %d of %s comes again: %s", record.queue_offset, queue, error.remark)
            continue
        properties = {**message.properties, POP_CHECK_POINT: point.text}
        found.append(msgspec.structs.replace(message, properties=properties))
    return found


def check_point_of(message: ReceivedMessage) -> CheckPoint:
    """The check point of a message that was popped. Raises `InvalidArgumentError` if it has none."""
    text = message.properties.get(POP_CHECK_POINT)
    if text is None:
        raise InvalidArgumentError("the message was not received by a SimpleConsumer: it has no POP_CK property")
    try:
        return parse_check_point(text)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error


def _point_in(header: PopResponseHeader, record: MessageRecord, broker_group: str) -> CheckPoint:
    """The check point of a message of the topic itself, for which the answer says where its delivery begins.

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
