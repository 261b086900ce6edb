"""Return of messages that could not be processed, so that the group gets them again later.

The broker does it (CONSUMER_SEND_MSG_BACK, 36): it stores a copy in the group's retry topic, with a growing delay.
After `max_reconsume_times` deliveries, or as many as the group's settings say, the copy goes to the dead letter topic.
A broker that answers code 3 leaves this to the client. The client then waits and sends the copy to the retry topic
itself, as RocketMQ's clients do. The broker redirects a copy that was delivered too often.

A copy has some more properties than its message. A broker may refuse them as too long, or the message's own properties
may contain a separator. The consumer that has such a message then delivers it again itself, while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable
from math import ceil
from typing import Final

from dledger_remoting import properties as names
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.compression import compress
from dledger_remoting.headers import ConsumerSendBackHeader, encode_ext
from dledger_remoting.properties import failure_reason, format_properties
from dledger_remoting.recalls import DEFAULT_LEVELS, parse_delay_levels
from dledger_remoting.topics import retry_topic

from .. import interception
from ..cluster.core import ClientCore
from ..errors import ClientError, RefusedError
from ..interception import Caller, SettleCall
from ..messages import ReceivedMessage
from ..sending.outgoing import COMPRESS_OVER_BYTES
from ..sending.sender import Sender
from ..sending.wire import Outgoing

logger = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 10.0
MAX_PAUSE_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 0.1

_FIRST_RETRY_DELAY_LEVEL: Final = 3
_LOGGED_FAILURES: Final = 5
"""Number of failures in a row to give a message back that are logged as warnings."""
DEAD_LETTER_LEVEL: Final = -1
"""Delay level of a message that is not to come again."""
_NOT_SUPPORTED_CODES: Final = frozenset({int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})


def pause_seconds(failures: int) -> float:
    """Return the pause in seconds before a message is tried again that has failed this often before; failures count
    from 0.
    """
    return min(_FIRST_PAUSE_SECONDS * (1 << min(failures, 10)), MAX_PAUSE_SECONDS)


def level_of(delay_s: float) -> int:
    """Return the lowest of RocketMQ's delay levels that is at least as long as a delay, or the longest."""
    levels_ms = parse_delay_levels(DEFAULT_LEVELS)
    return min(bisect_left(levels_ms, delay_s * 1000) + 1, len(levels_ms))


class RetrySender:
    """Gives messages of one consumer group back."""

    def __init__(self, core: ClientCore, caller: Caller, consumer_group: str, max_reconsume_times: int | None) -> None:
        self._core = core
        self._caller = caller
        self._consumer_group = consumer_group
        self._max_reconsume_times = max_reconsume_times
        self._sender = Sender(core, consumer_group, attempt_timeout=3.0, retry_unknown=True)
        self._is_send_back_supported = True

    async def give_back(
        self,
        message: ReceivedMessage[object],
        delay_s: float | None,
        is_held: Callable[[], bool],
        *,
        give_up: bool = False,
        reason: str | None = None,
    ) -> bool:
        """Give a message back. Returns True once the copy is stored; until then the message stays unacknowledged.

        The copy comes after `delay_s` seconds; None stands for the group's settings. With `give_up` the message becomes
        a dead letter: it was tried again here, which its record does not show, so the broker cannot know. `reason` says
        why the message failed.

        Returns False if there can be no copy of this message, or as soon as `is_held` is false. The present owner of
        the queue then gets the message itself.
        """
        if (around := interception.interceptor) is None:
            return await self._give_back(message, delay_s, is_held, give_up=give_up, reason=reason)
        call = SettleCall(self._caller, "dead_letter" if give_up else "retry", (message,))
        with around.settling(call):
            call.succeeded = await self._give_back(message, delay_s, is_held, give_up=give_up, reason=reason)
        return call.succeeded

    async def _give_back(
        self,
        message: ReceivedMessage[object],
        delay_s: float | None,
        is_held: Callable[[], bool],
        *,
        give_up: bool,
        reason: str | None,
    ) -> bool:
        failures = 0
        while is_held():
            try:
                if self._is_send_back_supported and await self._ask_broker(
                    message, delay_s, give_up=give_up, reason=reason
                ):
                    return True
                await asyncio.sleep(pause_seconds(message.reconsume_times) if delay_s is None else delay_s)
                if not is_held():
                    break
                await self._send_copy(message, give_up=give_up, reason=reason)
                return True
            except (ClientError, ValueError) as error:
                if isinstance(error, ValueError) or _is_illegal(error.__cause__):
                    logger.warning(
                        "message %s cannot be given back, only delivered again: %s", message.message_id, error
                    )
                    return False
                # `stalled` reports the later ones
                level = logging.WARNING if failures < _LOGGED_FAILURES else logging.DEBUG
                logger.log(level, "message %s not given back yet: %s", message.message_id, error)
                await asyncio.sleep(pause_seconds(failures))
                failures += 1
        return False

    async def _ask_broker(
        self, message: ReceivedMessage[object], delay_s: float | None, *, give_up: bool, reason: str | None
    ) -> bool:
        """Ask the broker to store a copy, and return whether it has. Raises `ClientError`.

        It stores none if it does not support the request, or refuses it permanently. For example its record is gone, or
        the group has no permission.
        """
        level = 0 if delay_s is None else level_of(delay_s)
        header = ConsumerSendBackHeader(
            offset=message.physical_offset,
            group=self._consumer_group,
            delay_level=DEAD_LETTER_LEVEL if give_up else level,
            delay_time_millis=None if delay_s is None else ceil(delay_s * 1000),
            origin_msg_id=message.properties.get(names.ORIGIN_MESSAGE_ID, message.offset_message_id),
            origin_topic=self._core.namespace.full(message.topic),
            unit_mode=False,
            max_reconsume_times=self._max_reconsume_times,
            failure_reason=failure_reason(reason or "") or None,
        )
        try:
            response = await self._core.call_leader(
                self._core.routes.group(message.queue.broker_group),
                RequestCode.CONSUMER_SEND_MSG_BACK,
                encode_ext(header),
                deadline=self._core.loop.time() + ATTEMPT_SECONDS,
                accept=_NOT_SUPPORTED_CODES,
                idempotent=False,
            )
        except RefusedError as error:
            if error.outcome == "unknown":
                raise
            logger.warning("message %s is sent back as a copy, for its broker says: %s", message.message_id, error)
            return False
        self._is_send_back_supported = response.code == ResponseCode.SUCCESS
        return self._is_send_back_supported

    async def _send_copy(self, message: ReceivedMessage[object], *, give_up: bool, reason: str | None) -> None:
        deliveries = message.reconsume_times + 1
        limit = 0 if give_up else self._max_reconsume_times  # with 0 it is a dead letter
        properties = {
            **message.properties,
            names.RETRY_TOPIC: self._core.namespace.full(message.topic),
            names.ORIGIN_MESSAGE_ID: message.properties.get(names.ORIGIN_MESSAGE_ID, message.offset_message_id),
            names.RECONSUME_TIME: str(deliveries),
            names.DELAY: str(_FIRST_RETRY_DELAY_LEVEL + message.reconsume_times),
        }
        if reason:
            properties[names.FAILURE_REASON] = failure_reason(reason)
        if limit is not None:
            properties[names.MAX_RECONSUME_TIMES] = str(limit)
        body, sys_flag = message.body, 0
        if len(body) > COMPRESS_OVER_BYTES:
            body, sys_flag = compress(body)
        outgoing = Outgoing(
            retry_topic(self._consumer_group),
            body,
            format_properties(properties),
            sys_flag,
            message.born_timestamp_ms,
            (message.message_id,),
            reconsume_times=deliveries,
            max_reconsume_times=limit,
            flag=message.flag,
        )
        await self._sender.deliver(outgoing, self._sender.next_queue, self._core.loop.time() + ATTEMPT_SECONDS)


def _is_illegal(error: BaseException | None) -> bool:
    return isinstance(error, RefusedError) and error.code == ResponseCode.MESSAGE_ILLEGAL
