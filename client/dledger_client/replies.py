"""Requests and replies: messages whose producers wait for what a consumer says to them."""

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

from .connection import Connection
from .core import ClientCore
from .errors import ConnectError, DeadlineError, InvalidArgumentError
from .messages import ReceivedMessage
from .wire import Outgoing

logger = logging.getLogger(__name__)

REPLY: Final = "reply"
"""Type of a message that is a reply."""


class Reply(msgspec.Struct, frozen=True):
    """What a consumer replied; `properties` are all those of its message, the protocol's own included."""

    body: bytes
    properties: Mapping[str, str]


class RequestsThatWait:
    """Requests of one producer whose replies have not come."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    @contextmanager
    def one_more(self, client_id: str, deadline: float) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        """A request that waits as long as this lasts: the properties that make a message one, and its reply."""
        loop, name = asyncio.get_running_loop(), uuid.uuid4().hex
        reply: asyncio.Future[Reply] = loop.create_future()
        ttl_ms = round((deadline - loop.time()) * 1000)
        self._waiting[name] = reply
        try:
            yield _text({CORRELATION_ID: name, REPLY_TO_CLIENT: client_id, TTL: str(ttl_ms)}), reply
        finally:
            del self._waiting[name]

    def take(self, connection: Connection, command: RemotingCommand) -> None:
        """A broker has a reply, and hears that it has come: also if nobody waits for it any more."""
        code, remark = ResponseCode.SUCCESS, None
        try:
            header = decode_ext(PushReplyHeader, command.ext)
            properties = parse_properties(header.properties or "")
            reply = Reply(decompress(bytes(command.body), header.sys_flag), properties)
        except RemotingError as error:
            code, remark = ResponseCode.SYSTEM_ERROR, error.remark
            logger.warning("a reply from %s cannot be read: %s", connection.address, error)
        else:
            waiting = self._waiting.get(properties.get(CORRELATION_ID, ""))
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        try:
            connection.send_frame(encode_command(make_response(command, code, remark)))
        except ConnectError as error:
            logger.debug("a reply was not acknowledged: %s", error)


async def in_time(reply: asyncio.Future[Reply], topic: str, deadline: float) -> Reply:
    """A reply, once it has come. Raises `DeadlineError`, whose outcome is unknown."""
    try:
        async with asyncio.timeout_at(deadline):
            return await reply
    except TimeoutError:
        error = DeadlineError(f"no consumer of topic {topic} replied in time")
        error.outcome = "unknown"
        raise error from None


class Asked(NamedTuple):
    """What a request says of its reply: the topic that replies name, and the properties that take it back."""

    topic: str
    marks: str


def asked_by(message: ReceivedMessage) -> Asked:
    """What a message asks for. Raises `InvalidArgumentError` if nobody waits for a reply to it."""
    wanted = {name: message.properties.get(name) for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER)}
    missing = [name for name, value in wanted.items() if not value]
    if missing:
        raise InvalidArgumentError(f"message {message.message_id} is no request: it has no {' and no '.join(missing)}")
    marks = {
        MESSAGE_TYPE: REPLY,
        CORRELATION_ID: wanted[CORRELATION_ID] or "",
        REPLY_TO_CLIENT: wanted[REPLY_TO_CLIENT] or "",
        TTL: message.properties.get(TTL, ""),
    }
    return Asked(reply_topic(wanted[CLUSTER] or ""), _text(marks))


async def pass_reply_on(
    core: ClientCore, broker_group: str, producer_group: str, asked: Asked, reply: Outgoing, deadline: float
) -> None:
    """Have the broker group of a request pass its reply on; raises what `ClientCore.call_leader` raises."""
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
    await core.routes.get(asked.topic, deadline)  # every broker group has it
    group = core.routes.group(broker_group)
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    await core.call_leader(group, code, header.encode_letters(), reply.body, deadline=deadline)


def _text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items())
