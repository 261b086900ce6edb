"""Requests of brokers about a consumer's offsets: move to other offsets (220), or report the present ones (221)."""

from __future__ import annotations

import logging
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import decode_ext
from dledger_remoting.resets import ConsumerStatusHeader, ResetOffsetHeader, decode_reset, encode_status
from dledger_remoting.topics import MessageQueue as NamedQueue

from .assignments import Assignments
from .connection import Connection
from .errors import ConnectError
from .messages import MessageQueue

logger = logging.getLogger(__name__)

RESET_CODES: Final = frozenset({RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT})


def take_request(connection: Connection, command: RemotingCommand, consumer_group: str, reading: Assignments) -> bool:
    """Obey a broker that has reset the group, or report the offsets to a broker that asks.

    Returns False if the request cannot be read.
    """
    try:
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if decode_ext(ResetOffsetHeader, command.ext).group == consumer_group:
                offsets = decode_reset(bytes(command.body))
                reading.reset({_convert_queue(queue): offset for queue, offset in offsets.items()})
            return True
        header = decode_ext(ConsumerStatusHeader, command.ext)
    except RemotingError as error:
        logger.warning("request %d of %s cannot be read: %s", command.code, connection.address, error)
        return False
    positions = {
        NamedQueue(queue.broker_group, queue.queue_id, queue.topic): offset
        for queue, offset in reading.positions().items()
        if queue.topic == header.topic and header.group == consumer_group
    }
    try:
        answer = make_response(command, ResponseCode.SUCCESS, None, None, encode_status(positions))
        connection.send_frame(encode_command(answer))
    except ConnectError as error:
        logger.debug("%s did not get the consumer's offsets: %s", connection.address, error)
    return True


def _convert_queue(queue: NamedQueue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
