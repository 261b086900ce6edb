"""Handler of a push consumer at work: decodes each message, has the handler work on it, and settles it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from traceback import format_exception_only
from typing import Generic, TypeAlias

from .. import interception
from ..callbacks import check_handler
from ..interception import Caller
from ..messages import Codec, DecodeError, ReceivedMessage, T, decoded, log_undelivered, undeliverable
from .fetcher import being_cancelled
from .offers import Offers

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[ReceivedMessage[T]], Awaitable[None]]
"""Processes one message. An exception means that the message must come back later."""


class Handling(Generic[T]):
    """Has the handler of one consumer work on messages, within the interceptor, if there is one.

    With `auto_ack` a message is acknowledged once its work is done. A message whose work fails is given back. Work on a
    message that does not decode fails without its handler. With `is_broadcast` such a message would not come again, so
    the handler gets it. Raises `InvalidArgumentError` if `handler` is no handler.
    """

    def __init__(
        self, caller: Caller, handler: Handler[T], codec: Codec[T] | None, *, auto_ack: bool, is_broadcast: bool
    ) -> None:
        self._caller = caller
        self._handler = check_handler(handler)
        self._codec = codec
        self._auto_ack = auto_ack
        self._is_broadcast = is_broadcast

    async def run(self, offers: Offers) -> None:
        """Work on one message after another, until the consumer is closed."""
        while (offered := await offers.next()) is not None:
            message = decoded(offered, self._codec)
            try:
                if interception.interceptor is None:
                    await self._work(message)
                else:
                    await interception.handle(self._caller, self._work, message)
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            # includes cancellations by other code, and panics of extensions, which are not an `Exception`
            except BaseException as error:
                if being_cancelled():
                    raise
                if isinstance(error, DecodeError) and self._refusal(message) is not None:
                    log_undelivered(error)
                    message.retry(reason=error.failure_reason)
                else:
                    logger.exception("handler failed for message %s of %s", message.message_id, message.queue)
                    message.retry(reason="".join(format_exception_only(error)))
            else:
                if self._auto_ack:
                    message.ack()

    async def work_on(self, message: ReceivedMessage) -> None:
        """Work on a message that an operator sends; its settlement is left to the caller.

        Raises the handler's errors, and `DecodeError` if the message does not decode.
        """
        await interception.handle(self._caller, self._work, decoded(message, self._codec))

    async def _work(self, message: ReceivedMessage[T]) -> None:
        if (refusal := self._refusal(message)) is not None:
            raise refusal
        await self._handler(message)

    def _refusal(self, message: ReceivedMessage[T]) -> DecodeError | None:
        """Return why the handler does not get a message; None if it does."""
        return None if self._is_broadcast else undeliverable(message)
