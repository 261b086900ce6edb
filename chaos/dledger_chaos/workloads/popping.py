"""Recorded pops, acknowledgements and changes of invisible times. No request is repeated after an unknown outcome."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_chaos.history import Invocation, Outcome, Recorder
from dledger_client import ClientError, ReceivedMessage
from dledger_client.cluster.core import ClientCore
from dledger_client.consuming.popped import check_point_of, popped_messages
from dledger_client.errors import refusal
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    PopHeader,
)
from dledger_remoting.pop import CheckPoint
from dledger_remoting.pop_bodies import BatchAck, bits_of, encode_batch_ack
from dledger_remoting.properties import POP_CHECK_POINT

from .payload import decode_payload
from .records import Hidden, Popped
from .sending import end_with_error

DEADLINE_SECONDS: Final = 5.0
_ROUTE_SECONDS: Final = 5.0
_ANY_QUEUE: Final = -1
_NO_MESSAGES: Final = frozenset({int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.POLLING_FULL)})
_ENDED_DELIVERY: Final = frozenset({int(ResponseCode.NO_MESSAGE)})


@dataclass(frozen=True, slots=True)
class PopGroup:
    """A consumer group that pops one topic. If `is_ordered`, all members pop in order, else none."""

    name: str
    topic: str
    is_ordered: bool


class RecordedPops:
    """The requests of one member of a group: one process of the history."""

    def __init__(
        self, core: ClientCore, recorder: Recorder, workload: str, process: str, group: PopGroup, rng: random.Random
    ) -> None:
        self._core = core
        self._recorder = recorder
        self._workload = workload
        self._process = process
        self._group = group
        self._rng = rng

    async def pop(self, most: int, invisible_s: float, poll_s: float) -> list[ReceivedMessage]:
        """Pop up to `most` messages from any queue of a random broker group. Return none after an unknown outcome."""
        group, core = self._group, self._core
        try:
            route = await core.routes.get(group.topic, core.loop.time() + _ROUTE_SECONDS)
        except ClientError:
            return []
        broker_groups = sorted({queue.broker_group for queue in route.readable})
        if not broker_groups:
            return []
        broker_group, hidden = self._rng.choice(broker_groups), Hidden(int(invisible_s * 1000))
        header = PopHeader(
            group.name,
            group.topic,
            _ANY_QUEUE,
            most,
            hidden.invisible_ms,
            int(poll_s * 1000),
            int(time.time() * 1000),
            init_mode=0,
            order=group.is_ordered,
        )
        invocation = self._invoke("pop", group.topic, [], hidden)
        response = await self._call(
            invocation,
            broker_group,
            RequestCode.POP_MESSAGE,
            encode_ext(header),
            accept=_NO_MESSAGES,
            wait_s=poll_s,
        )
        if response is None:
            return []
        messages = (
            [] if response.code in _NO_MESSAGES else popped_messages(response, group.name, group.topic, broker_group)
        )
        invocation.ok([_to_popped(message) for message in messages])
        return messages

    async def ack(self, messages: Sequence[ReceivedMessage]) -> Outcome:
        """Acknowledge messages of one broker group in one request, and return the outcome."""
        invocation = self._invoke("ack", self._group.topic, [_to_popped(message) for message in messages])
        point = check_point_of(messages[0])
        if len(messages) == 1:
            code, ext, body = RequestCode.ACK_MESSAGE, encode_ext(self._make_ack_header(messages[0], point)), b""
        else:
            acks = self._make_batch(messages)
            code, ext, body = RequestCode.BATCH_ACK_MESSAGE, {}, encode_batch_ack(point.broker_name, acks)
        response = await self._call(invocation, point.broker_name, code, ext, body, accept=_ENDED_DELIVERY)
        if response is None:
            return "info"
        if response.code == ResponseCode.SUCCESS:
            invocation.ok()
            return "ok"
        if len(messages) == 1:
            invocation.fail(response.remark or "", response.code)
            return "fail"
        invocation.info(response.remark or "", response.code)  # the answer does not name the refused messages
        return "info"

    async def hide(self, message: ReceivedMessage, seconds: float) -> ReceivedMessage | None:
        """Set a message's invisible time to `seconds`. Return it with its new handle, None unless acknowledged."""
        point, hidden = check_point_of(message), Hidden(int(seconds * 1000))
        invocation = self._invoke("hide", self._group.topic, _to_popped(message), hidden)
        ack = self._make_ack_header(message, point)
        header = ChangeInvisibleHeader(
            ack.consumer_group, ack.topic, ack.queue_id, ack.extra_info, ack.offset, hidden.invisible_ms
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        response = await self._call(invocation, point.broker_name, code, encode_ext(header), accept=_ENDED_DELIVERY)
        if response is None:
            return None
        if response.code != ResponseCode.SUCCESS:
            invocation.fail(response.remark or "", response.code)
            return None
        changed = decode_ext(ChangeInvisibleResponseHeader, response.ext)
        point = msgspec.structs.replace(
            point, start_offset=point.queue_offset, pop_time_ms=changed.pop_time, invisible_ms=changed.invisible_time
        )
        message = msgspec.structs.replace(message, properties={**message.properties, POP_CHECK_POINT: point.text})
        invocation.ok(_to_popped(message))
        return message

    # ---------------------------------------------------------------- inside

    def _make_ack_header(self, message: ReceivedMessage, point: CheckPoint) -> AckHeader:
        return AckHeader(self._group.name, message.queue.topic, point.queue_id, point.text, point.queue_offset)

    def _make_batch(self, messages: Sequence[ReceivedMessage]) -> list[BatchAck]:
        offsets: dict[CheckPoint, list[int]] = {}
        for message in messages:
            point = check_point_of(message)
            offsets.setdefault(msgspec.structs.replace(point, queue_offset=point.start_offset), []).append(
                point.queue_offset
            )
        return [
            BatchAck(
                self._group.name,
                self._group.topic,
                point.retry,
                point.start_offset,
                point.queue_id,
                point.pop_time_ms,
                bits_of(point.start_offset, group_offsets),
            )
            for point, group_offsets in offsets.items()
        ]

    def _invoke(self, f: str, key: str, value: object, hidden: Hidden | None = None) -> Invocation:
        request_extras = {} if hidden is None else msgspec.structs.asdict(hidden)
        return self._recorder.invoke(self._workload, self._process, f, key, value, **request_extras)

    async def _call(
        self,
        invocation: Invocation,
        broker_group: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        accept: frozenset[int],
        wait_s: float = 0.0,
    ) -> RemotingCommand | None:
        """Send one request, at most once. If it fails, record this and return None."""
        core = self._core
        deadline = core.loop.time() + wait_s + DEADLINE_SECONDS
        group = core.routes.group(broker_group)
        try:
            return await core.call_leader(group, code, ext, body, deadline=deadline, accept=accept, idempotent=False)
        except RemotingError as error:
            end_with_error(invocation, refusal(error))
        except ClientError as error:
            end_with_error(invocation, error)
        return None


def _to_popped(message: ReceivedMessage) -> Popped:
    return Popped(
        str(message.queue),
        message.queue_offset,
        decode_payload(message.body),
        message.reconsume_times,
        check_point_of(message).pop_time_ms,
    )
