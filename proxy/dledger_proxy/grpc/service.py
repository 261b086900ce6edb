"""The service `apache.rocketmq.v2.MessagingService`: its requests, the module of each, and what all have in common.

| requests | module |
|---|---|
| QueryRoute, QueryAssignment | `routes` |
| SendMessage, RecallMessage | `sending` |
| EndTransaction | `transactions` |
| ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue | `receiving` |
| Telemetry, Heartbeat, NotifyClientTermination | `telemetry` |
| PullMessage, UpdateOffset, GetOffset, QueryOffset, SyncLiteSubscription | here: answered 50100 |

Answers have the gRPC status OK and a status of their own. Only requests that are none, or that exceed a limit of the
port, end with another gRPC status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from dledger_base.telling import Telling
from dledger_client.errors import ClientError
from dledger_remoting.errors import RemotingError

from ..counters import ProxyCounters
from .answers import Refusal, refusal_of, status
from .callers import Caller, caller_of
from .definition import messaging_pb2 as pb
from .receiving import Receiving
from .routes import Routes
from .sending import Sending
from .telemetry import Telemetry
from .transactions import Transactions
from .transport import MESSAGE_TIMEOUT_S, has_received

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
SLOW_SECONDS: Final = 1.0
"""Time in seconds from which on a request is logged as slow."""

Serve: TypeAlias = Callable[[Stream[Any, Any]], Awaitable[None]]
_METHODS: Final = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name

logger = logging.getLogger(__name__)


class Service:
    """All requests of the service. At most `max_requests` are under way, and as many wait for messages."""

    def __init__(
        self,
        routes: Routes,
        sending: Sending,
        receiving: Receiving,
        transactions: Transactions,
        telemetry: Telemetry,
        counters: ProxyCounters,
        max_requests: int,
    ) -> None:
        self._receiving = receiving
        self._telemetry = telemetry
        self._counters = counters
        self._max_requests = max_requests
        self._loop = asyncio.get_running_loop()
        self._telling = Telling()
        self._handlers: dict[str, tuple[Serve, Cardinality]] = {
            "Telemetry": (self._serve_telemetry, Cardinality.STREAM_STREAM),
            "ReceiveMessage": (self._serve_receive, Cardinality.UNARY_STREAM),
            "PullMessage": (self._refuse("PullMessage"), Cardinality.UNARY_STREAM),
        }
        unary: dict[str, Callable[[Caller, Any], Awaitable[Message]]] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": telemetry.heartbeat,
            "NotifyClientTermination": telemetry.end,
            "SendMessage": sending.send,
            "EndTransaction": transactions.end,
            "RecallMessage": sending.recall,
            "AckMessage": receiving.ack,
            "ChangeInvisibleDuration": receiving.change_invisible,
            "ForwardMessageToDeadLetterQueue": receiving.forward,
        }
        for name, handle in unary.items():
            self._handlers[name] = self._unary(name, handle), Cardinality.UNARY_UNARY
        for name in ("UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"):
            self._handlers[name] = self._refuse(name), Cardinality.UNARY_UNARY

    def __mapping__(self) -> dict[str, Handler]:
        """Return the handlers by path, as grpclib asks for them."""
        types = {name: (_type_of(method.input_type), _type_of(method.output_type)) for name, method in _METHODS.items()}
        return {
            f"/{SERVICE}/{name}": Handler(serve, cardinality, *types[name])
            for name, (serve, cardinality) in self._handlers.items()
        }

    def _unary(self, name: str, handle: Callable[[Caller, Any], Awaitable[Message]]) -> Serve:
        answer_type = _type_of(_METHODS[name].output_type)

        async def serve(stream: Stream[Any, Any]) -> None:
            began = self._loop.time()
            with self._counters.working():
                request = await _read(stream)
                trace = ""
                try:
                    caller = caller_of(stream, began)
                    trace = caller.trace
                    self._require_room()
                    answer = await handle(caller, request)
                except (Refusal, ClientError, RemotingError) as error:
                    answer = answer_type(status=self._refusal(name, stream, error).status)
                self._counters.answers[name, pb.Code.Name(answer.status.code)] += 1  # type: ignore[attr-defined]
                if name == "SendMessage":
                    self._count_sent(request, answer)
                await stream.send_message(answer)
            seconds = self._loop.time() - began
            self._counters.seconds.labels(name).observe(seconds)
            if seconds >= SLOW_SECONDS:
                text = "event=slow_request request=%s seconds=%.3f client=%s trace=%s"
                self._telling.log(
                    logger, logging.INFO, "", name, text, name, seconds, _header(stream, "x-mq-client-id"), trace
                )

        return serve

    async def _serve_receive(self, stream: Stream[Any, Any]) -> None:
        began = self._loop.time()
        request = await _read(stream)
        try:
            caller = caller_of(stream, began)
            self._require_room_to_poll()
            with self._counters.polling():
                await self._give_out(stream, self._receiving.receive(caller, request, partial(_end, stream)))
        except (Refusal, ClientError, RemotingError) as error:
            refusal = self._refusal("ReceiveMessage", stream, error)
            self._counters.answers["ReceiveMessage", pb.Code.Name(refusal.code)] += 1
            await stream.send_message(pb.ReceiveMessageResponse(status=refusal.status))

    async def _give_out(self, stream: Stream[Any, Any], parts: AsyncIterator[pb.ReceiveMessageResponse]) -> None:
        counters = self._counters
        async with aclosing(parts) as answers:  # type: ignore[type-var]
            async for part in answers:
                if part.HasField("status"):
                    counters.answers["ReceiveMessage", pb.Code.Name(part.status.code)] += 1
                elif part.HasField("message"):
                    counters.messages_out += 1
                    counters.bytes_out += len(part.message.body)
                await stream.send_message(part)

    async def _serve_telemetry(self, stream: Stream[Any, Any]) -> None:
        try:
            await self._telemetry.serve(caller_of(stream, self._loop.time()), stream)
        except (Refusal, ClientError) as error:
            refusal = self._refusal("Telemetry", stream, error)
            self._counters.answers["Telemetry", pb.Code.Name(refusal.code)] += 1
            await stream.send_message(pb.TelemetryCommand(status=refusal.status))

    def _refuse(self, name: str) -> Serve:
        """Return the handler of a request that is not supported, as RocketMQ 5.3.3's proxy answers it."""
        answer_type = _type_of(_METHODS[name].output_type)

        async def serve(stream: Stream[Any, Any]) -> None:
            await _read(stream)
            self._counters.answers[name, pb.Code.Name(pb.NOT_IMPLEMENTED)] += 1
            text = f"{name} is not supported: use a simple or a push consumer"
            await stream.send_message(answer_type(status=status(pb.NOT_IMPLEMENTED, text)))

        return serve

    def _refusal(self, name: str, stream: Stream[Any, Any], error: Exception) -> Refusal:
        refusal = error if isinstance(error, Refusal) else refusal_of(error)  # type: ignore[arg-type]
        text = "event=request_refused request=%s code=%d client=%s trace=%s reason=%r"
        client, trace = _header(stream, "x-mq-client-id"), _header(stream, "traceparent")
        kind = f"{name} {refusal.code}"
        self._telling.log(logger, logging.INFO, client, kind, text, name, refusal.code, client, trace, str(refusal))
        return refusal

    def _count_sent(self, request: pb.SendMessageRequest, answer: Any) -> None:  # noqa: ANN401 - one of all answers
        if answer.status.code == pb.OK:
            self._counters.messages_in += len(request.messages)
            self._counters.bytes_in += sum(len(message.body) for message in request.messages)

    def _require_room(self) -> None:
        """Raise `Refusal` while as many requests are under way as may be."""
        if self._counters.under_way > self._max_requests:
            self._counters.count_limit("max_requests")
            raise Refusal(
                pb.TOO_MANY_REQUESTS, f"{self._max_requests} requests are under way at this proxy, its limit: try later"
            )

    def _require_room_to_poll(self) -> None:
        """Raise `Refusal` while as many requests wait for messages as may."""
        if self._counters.polls >= self._max_requests:
            self._counters.count_limit("max_polls")
            raise Refusal(
                pb.TOO_MANY_REQUESTS,
                f"{self._max_requests} requests wait for messages at this proxy, its limit: try later",
            )


async def _end(stream: Stream[Any, Any]) -> bool:
    """End an answer. Returns whether its client has received all of it."""
    await stream.send_trailing_metadata()
    return await has_received(stream)


async def _read(stream: Stream[Any, Any]) -> Any:  # noqa: ANN401 - a message of the type that the request has
    """Return the one message of a request. Raises `GRPCError` if it does not come, or cannot be read."""
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_S):
            request = await stream.recv_message()
    except TimeoutError:
        raise GRPCError(Status.DEADLINE_EXCEEDED, f"no request came within {MESSAGE_TIMEOUT_S:g} s") from None
    except NotImplementedError:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported: send them uncompressed") from None
    except (DecodeError, AssertionError) as error:
        raise GRPCError(Status.INVALID_ARGUMENT, f"the request cannot be read: {error}") from None
    if request is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
    return request


def _type_of(descriptor: Any) -> Any:  # noqa: ANN401 - protobuf makes the classes
    return getattr(pb, descriptor.name)


def _header(stream: Stream[Any, Any], name: str) -> str:
    value = None if stream.metadata is None else stream.metadata.get(name)
    return value[:128] if isinstance(value, str) else ""
