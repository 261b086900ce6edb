"""Interception of clients' calls: one interceptor stands around the calls of all clients of the process.

It is for code that watches a whole program, such as tracing. An interceptor has a method for each kind of call. The
method returns a context manager, in which the client makes the call. So it sees the arguments before, and the results
or the error after. It may replace the messages of a send, for example by messages with more properties.

    class Watch(Interceptor):
        @contextmanager
        def sending(self, call: SendCall) -> Iterator[None]:
            yield
            print(call.operation, call.topic, [result.message_id for result in call.results])

    install(Watch())

Calls are intercepted from `install` to `uninstall`, also those of clients that were made before. Without an interceptor
sends, receives, handlers and acknowledgements read `interceptor`, and call nothing of this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeAlias

import msgspec

from .errors import InvalidArgumentError
from .messages import Message, ReceivedMessage, T
from .replies import Reply
from .results import SendResult

SendOperation: TypeAlias = Literal["send", "send_batch", "send_oneway", "request", "reply", "begin"]
"""Call that sends, by its name. `"begin"` is that of a `TransactionProducer`."""
ReceiveOperation: TypeAlias = Literal["receive", "poll", "iterate", "reply"]
"""Call that receives, by its name. `"reply"` is the part of a request that waits for its reply."""
SettleOperation: TypeAlias = Literal["ack", "retry", "dead_letter", "change_invisible", "commit"]
"""Settlement of messages. `"retry"` and `"dead_letter"` give a failed message back."""


class Caller(msgspec.Struct, frozen=True):
    """Client that makes a call. `group` is the group's name within `namespace`, which is empty without one."""

    client_id: str
    group: str
    namespace: str
    name_servers: tuple[str, ...]
    is_broadcast: bool = False


class SendCall(msgspec.Struct):
    """Send of one message or several, whose bodies are the bytes that travel.

    An interceptor may replace `messages` by as many others. If these break a limit, the original messages are sent: an
    interceptor does not make a send fail. `results` are there once the call has succeeded, except for one-way sends and
    replies. `conversation_id` belongs to a request, and `asked_by` is the request that a reply answers.
    """

    caller: Caller
    operation: SendOperation
    topic: str
    messages: Sequence[Message]
    idempotent: bool = False
    conversation_id: str | None = None
    asked_by: ReceivedMessage[object] | None = None
    results: Sequence[SendResult] = ()


class ReceiveCall(msgspec.Struct):
    """Wait of the application for messages. `messages` are there once they are handed to the application.

    `topic` is the topic, if the client reads a single one.
    """

    caller: Caller
    operation: ReceiveOperation
    topic: str | None = None
    messages: Sequence[ReceivedMessage[object] | Reply] = ()


class HandleCall(msgspec.Struct):
    """Work of a consumer's handler on a message.

    If the body does not decode, the work fails with a `DecodeError`, and the handler does not get the message.
    """

    caller: Caller
    message: ReceivedMessage[object]


class SettleCall(msgspec.Struct):
    """Request that settles messages; none are named by a commit of offsets.

    `succeeded` is False once the broker has answered that it was too late.
    """

    caller: Caller
    operation: SettleOperation
    messages: Sequence[ReceivedMessage[object]] = ()
    succeeded: bool = True


class TransactionCall(msgspec.Struct):
    """Check or end of a transaction.

    `properties` are those of its stored message, which only a check knows. `decision` is `"commit"`, `"rollback"` or
    `"unknown"`; a check has made it once its work is done.
    """

    caller: Caller
    operation: Literal["check", "end"]
    topic: str
    message_id: str
    properties: Mapping[str, str]
    decision: Literal["commit", "rollback", "unknown"] = "unknown"


class Interceptor:
    """Base of interceptors. Its methods intercept nothing, so that a subclass has only the methods that it needs.

    The methods are called on the thread and in the context (`contextvars`) in which the call is made. An exception of
    an interceptor is an exception of the call.
    """

    def sending(self, call: SendCall) -> AbstractContextManager[object]:
        """Return the context of a send: `call.messages` may be replaced on entry."""
        del call
        return nullcontext()

    def receiving(self, call: ReceiveCall) -> AbstractContextManager[object]:
        """Return the context of a wait for messages."""
        del call
        return nullcontext()

    def handling(self, call: HandleCall) -> AbstractContextManager[object]:
        """Return the context in which a handler works on a message."""
        del call
        return nullcontext()

    def settling(self, call: SettleCall) -> AbstractContextManager[object]:
        """Return the context of a request that settles messages."""
        del call
        return nullcontext()

    def deciding(self, call: TransactionCall) -> AbstractContextManager[object]:
        """Return the context of a check of a transaction, or of its end."""
        del call
        return nullcontext()


interceptor: Interceptor | None = None
"""The interceptor of this process, None without any."""


def install(new: Interceptor) -> None:
    """Have an interceptor stand around all calls from now on. Raises `InvalidArgumentError` if there is one already."""
    global interceptor  # noqa: PLW0603 - calls read this variable, which costs less than any call
    if interceptor is not None:
        raise InvalidArgumentError(f"{interceptor!r} intercepts calls already: uninstall it first")
    interceptor = new


def uninstall() -> None:
    """Have no interceptor from now on. Calls that are under way end in their contexts."""
    global interceptor  # noqa: PLW0603 - as above
    interceptor = None


async def send(
    around: Interceptor, call: SendCall, proceed: Callable[[Sequence[Message]], Awaitable[Sequence[SendResult]]]
) -> Sequence[SendResult]:
    """Send within `around`, by `proceed`. Raises its errors."""
    given = call.messages
    with around.sending(call):
        try:
            call.results = await proceed(call.messages)
        except InvalidArgumentError:  # nothing was sent
            if call.messages is given:
                raise
            call.results = await proceed(given)
    return call.results


async def handle(
    caller: Caller, handler: Callable[[ReceivedMessage[T]], Awaitable[object]], message: ReceivedMessage[T]
) -> None:
    """Have a handler work on a message within the interceptor, if there is one. Raises the handler's errors."""
    if (around := interceptor) is None:  # another thread may uninstall it meanwhile
        await handler(message)
    else:
        with around.handling(HandleCall(caller, message)):
            await handler(message)


@contextmanager
def settling(
    caller: Caller, operation: SettleOperation, messages: Sequence[ReceivedMessage[object]] = ()
) -> Iterator[SettleCall]:
    """Stand in the interceptor's context of a settlement, if there is an interceptor. Yields the call that it sees."""
    call = SettleCall(caller, operation, messages)
    if (around := interceptor) is None:
        yield call
    else:
        with around.settling(call):
            yield call
