"""Requests of brokers about where a consumer is: it is to go on elsewhere (220), or to say where it is (221)."""

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
    """Obey a broker that has reset the group, or tell one how far each queue is done with; False if it is not clear
    what is asked.
    """
    try:
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if decode_ext(ResetOffsetHeader, command.ext).group == consumer_group:
                offsets = decode_reset(bytes(command.body))
                reading.reset({_own(queue): offset for queue, offset in offsets.items()})
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
        logger.debug("%s was not told where its consumer is: %s", connection.address, error)
    return True


def _own(queue: NamedQueue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
