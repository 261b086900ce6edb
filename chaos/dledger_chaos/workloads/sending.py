"""Recorded sends, each with one of three outcomes."""

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
    """End an operation that raised an error: as `fail` if it certainly had no effect, else as `info`."""
    if error.outcome == "not_sent":
        invocation.fail(str(error), code_of(error), **extras)
    else:
        invocation.info(str(error), code_of(error), **extras)


def code_of(error: ClientError) -> int | None:
    """Return the response code of an error, None without an answer."""
    return error.code if isinstance(error, SendError | RefusedError) else None


async def attempt(invocation: Invocation, call: Awaitable[_ResultT]) -> _ResultT | None:
    """Await a call; if it raises, end the operation and return None."""
    try:
        return await call
    except ClientError as error:
        end_with_error(invocation, error)
        return None


def _check_replicated(invocation: Invocation, results: Sequence[SendResult]) -> bool:
    """Return True if all messages are replicated. Else end the operation as `info`: one broker alone may lose them."""
    if all(result.replicated for result in results):
        return True
    invocation.info("stored, but not flushed or replicated in time")
    return False


def _make_message(value: str, size_bytes: int) -> Message:
    return Message(encode_payload(value, size_bytes), key=value)


class RecordedSends:
    """The sends of one producer to one topic: one process of the history.

    `f` is the function under which `send` is recorded (see `records`). `message` makes the message for `send` from its
    value and size; the value must be its only key.
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
        message: Callable[[str, int], Message] = _make_message,
    ) -> None:
        self._recorder = recorder
        self._workload = workload
        self._process = process
        self._producer = producer
        self._topic = topic
        self._function = f
        self._build_message = message
        self._count = 0

    async def send(self, size_bytes: int) -> tuple[str, SendResult] | None:
        """Send one message. Return its value and the result, None if it is not acknowledged."""
        value = self._next_value()
        invocation = self._invoke(self._function, self._topic, value)
        call = self._producer.send(self._topic, self._build_message(value, size_bytes))
        return self._end_send(invocation, value, await attempt(invocation, call))

    async def send_ordered(self, ordering_key: str, size_bytes: int) -> tuple[str, SendResult] | None:
        """Send one message with an ordering key. Return its value and the result, None if it is not acknowledged."""
        value = self._next_value()
        invocation = self._invoke("send-ordered", ordering_key, value)
        call = self._producer.send(self._topic, encode_payload(value, size_bytes), key=value, ordering_key=ordering_key)
        return self._end_send(invocation, value, await attempt(invocation, call))

    async def send_batch(self, sizes_bytes: Sequence[int]) -> None:
        """Send messages as one batch."""
        values = [self._next_value() for _ in sizes_bytes]
        messages = [_make_message(value, size) for value, size in zip(values, sizes_bytes, strict=True)]
        invocation = self._invoke("send-batch", self._topic, values)
        results = await attempt(invocation, self._producer.send_batch(self._topic, messages))
        if results is not None and _check_replicated(invocation, results):
            invocation.ok(**msgspec.structs.asdict(stored_batch(results)))

    async def send_oneway(self, size_bytes: int) -> None:
        """Send one message one-way, so that there is no answer."""
        value = self._next_value()
        invocation = self._invoke("send-oneway", self._topic, value)
        try:
            await self._producer.send_oneway(self._topic, encode_payload(value, size_bytes))
        except ClientError as error:
            end_with_error(invocation, error)
        else:
            invocation.info("no answer was asked for")

    def _end_send(self, invocation: Invocation, value: str, result: SendResult | None) -> tuple[str, SendResult] | None:
        if result is None or not _check_replicated(invocation, [result]):
            return None
        invocation.ok(**msgspec.structs.asdict(stored(result)))
        return value, result

    def _next_value(self) -> str:
        self._count += 1
        return f"{self._workload}.{self._process}:{self._count}"

    def _invoke(self, f: str, key: str, value: object) -> Invocation:
        return self._recorder.invoke(self._workload, self._process, f, key, value)
