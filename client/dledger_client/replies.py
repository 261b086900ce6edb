"""Requests and replies: messages whose producers wait for a consumer's reply."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.compression import decompress
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import PushReplyHeader, SendMessageHeader, decode_ext
from dledger_remoting.properties import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    NAME_END,
    REPLY_TO_CLIENT,
    TTL,
    VALUE_END,
    parse_properties,
)
from dledger_remoting.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES, reply_topic

from .cluster.connection import Connection
from .cluster.core import ClientCore
from .errors import ConnectError, DeadlineError, InvalidArgumentError
from .messages import ReceivedMessage
from .sending.wire import Outgoing

logger = logging.getLogger(__name__)

REPLY: Final = "reply"
"""Type of a message that is a reply."""


class Reply(msgspec.Struct, frozen=True):
    """A consumer's reply. `properties` are all properties of its message, including those of the protocol."""

    body: bytes
    properties: Mapping[str, str]


class RequestsThatWait:
    """Requests of one producer whose replies have not come."""

    def __init__(self) -> None:
        self._pending_replies: dict[str, asyncio.Future[Reply]] = {}

    @contextmanager
    def one_more(self, client_id: str, deadline: float) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        """Add a request while the block runs. Yields the properties that make a message a request, and its reply."""
        loop, correlation_id = asyncio.get_running_loop(), uuid.uuid4().hex
        reply: asyncio.Future[Reply] = loop.create_future()
        ttl_ms = round((deadline - loop.time()) * 1000)
        self._pending_replies[correlation_id] = reply
        try:
            yield (
                _format_properties({CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(ttl_ms)}),
                reply,
            )
        finally:
            del self._pending_replies[correlation_id]

    def take(self, connection: Connection, command: RemotingCommand) -> None:
        """Take a reply from a broker, and acknowledge it, even if no call waits for it any more."""
        code, remark = ResponseCode.SUCCESS, None
        try:
            header = decode_ext(PushReplyHeader, command.ext)
            properties = parse_properties(header.properties or "")
            reply = Reply(decompress(bytes(command.body), header.sys_flag), properties)
        except RemotingError as error:
            code, remark = ResponseCode.SYSTEM_ERROR, error.remark
            logger.warning("a reply from %s cannot be read: %s", connection.address, error)
        else:
            pending = self._pending_replies.get(properties.get(CORRELATION_ID, ""))
            if pending is not None and not pending.done():
                pending.set_result(reply)
        try:
            connection.send_frame(encode_command(make_response(command, code, remark)))
        except ConnectError as error:
            logger.debug("a reply was not acknowledged: %s", error)


async def in_time(reply: asyncio.Future[Reply], topic: str, deadline: float) -> Reply:
    """Return a reply, once it has come. Raises `DeadlineError`, whose outcome is unknown."""
    try:
        async with asyncio.timeout_at(deadline):
            return await reply
    except TimeoutError:
        error = DeadlineError(f"no consumer of topic {topic} replied in time")
        error.outcome = "unknown"
        raise error from None


class Asked(NamedTuple):
    """Reply address of a request: the topic that replies name, and the properties that lead the reply back."""

    topic: str
    marks: str


def asked_by(message: ReceivedMessage[object]) -> Asked:
    """Return the reply address of a message. Raises `InvalidArgumentError` if the message asks for no reply."""
    reply_properties = {name: message.properties.get(name) for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER)}
    missing = [name for name, value in reply_properties.items() if not value]
    if missing:
        raise InvalidArgumentError(f"message {message.message_id} is no request: it has no {' and no '.join(missing)}")
    marks = {
        MESSAGE_TYPE: REPLY,
        CORRELATION_ID: reply_properties[CORRELATION_ID] or "",
        REPLY_TO_CLIENT: reply_properties[REPLY_TO_CLIENT] or "",
        TTL: message.properties.get(TTL, ""),
    }
    return Asked(reply_topic(reply_properties[CLUSTER] or ""), _format_properties(marks))


async def pass_reply_on(
    core: ClientCore, broker_group: str, producer_group: str, asked: Asked, reply: Outgoing, deadline: float
) -> None:
    """Have a request's broker group forward the reply. Raises the errors of `ClientCore.call_leader`."""
    header = SendMessageHeader(
        producer_group=producer_group,
        topic=asked.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
        queue_id=0,
        sys_flag=reply.sys_flag,
        born_timestamp=reply.born_timestamp_ms,
        flag=0,
        properties=asked.marks + reply.properties,
    )
    if core.routes.used(asked.topic) is None:
        await core.routes.refresh(asked.topic, deadline)  # every broker group has it
    group = core.routes.group(broker_group)
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    await core.call_leader(group, code, header.encode_letters(), reply.body, deadline=deadline)


def _format_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items())
