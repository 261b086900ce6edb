"""Leases of popped messages: each stays hidden from the other members of its group while a handler works on it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from dledger_client import ClientError, ReceivedMessage, Settlement, SimpleConsumer

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = (
    *(10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0),
    *(420.0, 480.0, 540.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0),
)
"""Time in seconds until a failed message comes again, by the number of its failures, as in RocketMQ's clients."""

MIN_HIDDEN_SECONDS: Final = 1.0
"""Minimum time in seconds for which a broker hides a message."""

_RENEWALS: Final = 3
"""Number of renewals that fit into the invisible time, so that two of them may fail."""


class Lease:
    """The hold on one popped message until it is acknowledged, given back or rejected.

    It stands in the message's `settle`. So `ack`, `retry` and `reject` of the message settle it, once; `settled` waits
    for the broker's answer.
    """

    def __init__(self, consumer: SimpleConsumer, message: ReceivedMessage, invisible: float) -> None:
        self.message = msgspec.structs.replace(message, settle=self)
        self._consumer = consumer
        self._held = message
        """The message as the broker knows it: each renewal replaces it."""
        self._invisible = invisible
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._is_released = False
        self._settling: asyncio.Task[None] | None = None

    def __call__(self, _message: ReceivedMessage, settlement: Settlement) -> None:
        """Settle the message. Only the first call counts."""
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle(settlement))

    async def settled(self) -> None:
        """Wait until the broker has answered, if the message is being settled. Raises `ClientError` if that failed."""
        if self._settling is not None:
            await asyncio.shield(self._settling)

    def hold(self) -> None:
        """Keep the message hidden until `release`, or until it is settled."""
        self._timer = asyncio.get_running_loop().call_later(self._invisible / _RENEWALS, self._begin_to_renew)

    async def release(self) -> None:
        """Stop the renewals. A message that is not settled comes again when its invisible time is over.

        Waits for a renewal that is under way: it replaces the check point by which the message is settled.
        """
        self._is_released = True
        if self._timer is not None:
            self._timer.cancel()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    def _begin_to_renew(self) -> None:
        self._renewal = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            renewed = await self._consumer.change_invisible(self._held, self._invisible)
        except ClientError as error:
            logger.warning("message %s is not hidden for longer yet: %s", self.message.message_id, error)
        else:
            if renewed is None:
                logger.warning("message %s comes again: its invisible time is over", self.message.message_id)
                return
            self._held = renewed
        if not self._is_released:
            self.hold()

    async def _settle(self, settlement: Settlement) -> None:
        await self.release()
        try:
            if settlement.give_up:
                is_held = await self._consumer.reject(self._held)
            elif settlement.again:
                is_held = await self._consumer.change_invisible(self._held, self._delay_s(settlement)) is not None
            else:
                is_held = await self._consumer.ack(self._held)
        except ClientError as error:
            logger.warning("message %s comes again: it could not be settled: %s", self.message.message_id, error)
            raise
        if not is_held:  # or an earlier attempt has settled it, whose answer was lost
            logger.warning("message %s may come again: it was settled too late, or twice", self.message.message_id)

    def _delay_s(self, settlement: Settlement) -> float:
        if settlement.delay_s is not None:
            return max(MIN_HIDDEN_SECONDS, settlement.delay_s)
        return RETRY_SECONDS[min(self.message.reconsume_times, len(RETRY_SECONDS) - 1)]


async def settled(message: ReceivedMessage) -> None:
    """Wait until the broker has answered to the settlement of a popped message. Other messages need no wait.

    The commit of their offsets follows within seconds. Raises `ClientError`.
    """
    if isinstance(message.settle, Lease):
        await message.settle.settled()
