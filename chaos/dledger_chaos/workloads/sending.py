"""Sends that are recorded with one of three outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from dledger_chaos.history import Invocation, Recorder
from dledger_client import ClientError, Message, Producer, RefusedError, SendError, SendResult

from .payload import encode_payload
from .records import stored, stored_batch

_ResultT = TypeVar("_ResultT")


def end_with_error(invocation: Invocation, error: ClientError, **extras: object) -> None:
    """End an operation that raised: `fail` only if the client is certain that nothing was stored."""
    if error.outcome == "not_sent":
        invocation.fail(str(error), code_of(error), **extras)
    else:
        invocation.info(str(error), code_of(error), **extras)


def code_of(error: ClientError) -> int | None:
    """The response code behind an error, None if there was no answer."""
    return error.code if isinstance(error, SendError | RefusedError) else None


async def attempt(invocation: Invocation, call: Awaitable[_ResultT]) -> _ResultT | None:
    """Await a call; if it raises, end the operation and return None."""
    try:
        return await call
    except ClientError as error:
        end_with_error(invocation, error)
        return None


def _replicated(invocation: Invocation, results: Sequence[SendResult]) -> bool:
    """Whether this is an acknowledgement; if not, end the operation: what one broker has stored may stay or go."""
    if all(result.replicated for result in results):
        return True
    invocation.info("stored, but not flushed or replicated in time")
    return False


def _named_by_key(value: str, size_bytes: int) -> Message:
    return Message(encode_payload(value, size_bytes), key=value)


class RecordedSends:
    """The sends of one producer to one topic: one process of the history.

    `f` is what its single sends are recorded as: see `records`. `message` makes what `send` sends of its value and
    size; the value is its only key.
    """

    def __init__(
        self,
        recorder: Recorder,
        workload: str,
        process: str,
        producer: Producer,
        topic: str,
        *,
        f: str = "send",
        message: Callable[[str, int], Message] = _named_by_key,
    ) -> None:
        self._recorder = recorder
        self._workload = workload
        self._process = process
        self._producer = producer
        self._topic = topic
        self._f = f
        self._message = message
        self._count = 0

    async def send(self, size_bytes: int) -> tuple[str, SendResult] | None:
        """Send one message; its value and where it lies once it is acknowledged, None if it is not."""
        value = self._next_value()
        invocation = self._invoke(self._f, self._topic, value)
        call = self._producer.send(self._topic, self._message(value, size_bytes))
        return self._stored(invocation, value, await attempt(invocation, call))

    async def send_ordered(self, ordering_key: str, size_bytes: int) -> tuple[str, SendResult] | None:
        """Send one message behind all others with its ordering key."""
        value = self._next_value()
        invocation = self._invoke("send-ordered", ordering_key, value)
        call = self._producer.send(self._topic, encode_payload(value, size_bytes), key=value, ordering_key=ordering_key)
        return self._stored(invocation, value, await attempt(invocation, call))

    async def send_batch(self, sizes_bytes: Sequence[int]) -> None:
        """Send messages as one batch."""
        values = [self._next_value() for _ in sizes_bytes]
        messages = [_named_by_key(value, size) for value, size in zip(values, sizes_bytes, strict=True)]
        invocation = self._invoke("send-batch", self._topic, values)
        results = await attempt(invocation, self._producer.send_batch(self._topic, messages))
        if results is not None and _replicated(invocation, results):
            invocation.ok(**msgspec.structs.asdict(stored_batch(results)))

    async def send_oneway(self, size_bytes: int) -> None:
        """Send one message without an answer."""
        value = self._next_value()
        invocation = self._invoke("send-oneway", self._topic, value)
        try:
            await self._producer.send_oneway(self._topic, encode_payload(value, size_bytes))
        except ClientError as error:
            end_with_error(invocation, error)
        else:
            invocation.info("no answer was asked for")

    def _stored(self, invocation: Invocation, value: str, result: SendResult | None) -> tuple[str, SendResult] | None:
        if result is None or not _replicated(invocation, [result]):
            return None
        invocation.ok(**msgspec.structs.asdict(stored(result)))
        return value, result

    def _next_value(self) -> str:
        self._count += 1
        return f"{self._workload}.{self._process}:{self._count}"

    def _invoke(self, f: str, key: str, value: object) -> Invocation:
        return self._recorder.invoke(self._workload, self._process, f, key, value)
