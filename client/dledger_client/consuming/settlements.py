"""Settlements of one consumer: what follows once the work on a message has ended, well or not."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from ..cluster.core import ClientCore
from ..messages import ReceivedMessage, Settlement, undecoded
from .assignments import Assignments
from .fetcher import QueueFetcher
from .offers import Offers
from .retries import RetrySender, pause_seconds

_ORDERLY_RECONSUME_TIMES: Final = 16
"""Default number of times that an orderly consumer tries a failed message again.

No broker takes part in these retries.
"""


class Settlements:
    """Acknowledges finished messages, and has failed messages delivered again.

    With `in_order` a failed message is tried again in its place, `max_reconsume_times` times. With `is_broadcast` it
    counts as finished. All others are given back to the broker by `retries`.
    """

    def __init__(
        self,
        assignments: Assignments,
        offers: Offers,
        retries: RetrySender,
        core: ClientCore,
        *,
        in_order: bool,
        is_broadcast: bool,
        max_reconsume_times: int | None,
    ) -> None:
        self._assignments = assignments
        self._offers = offers
        self._retries = retries
        self._core = core
        self._in_order = in_order
        self._is_broadcast = is_broadcast
        self._max_tries_here = _ORDERLY_RECONSUME_TIMES if max_reconsume_times is None else max_reconsume_times

    def settle(self, fetcher: QueueFetcher, message: ReceivedMessage[object], settlement: Settlement) -> None:
        """End the work on a message, unless it has ended before or its queue belongs to another member."""
        if self._core.is_closed or not fetcher.finish(message) or not self._assignments.holds(fetcher):
            return
        if not settlement.again or self._is_broadcast:
            self._acknowledge(fetcher, message)
        else:
            fetcher.retrying[message.queue_offset] = self._core.loop.time() + (settlement.delay_s or 0.0)
            self._core.spawn(self._retry(fetcher, message, settlement), f"retry {message.message_id}")

    def _acknowledge(self, fetcher: QueueFetcher, message: ReceivedMessage[object]) -> None:
        fetcher.acknowledge(message.queue_offset)
        if self._in_order:
            self._offers.add(fetcher)

    async def _retry(self, fetcher: QueueFetcher, message: ReceivedMessage[object], settlement: Settlement) -> None:
        delay_s, give_up = settlement.delay_s, settlement.give_up
        is_repeated_here = self._in_order and message.reconsume_times < self._max_tries_here and not give_up
        if is_repeated_here:
            fetcher.try_again(message.queue_offset)
        if not is_repeated_here and await self._retries.give_back(
            message,
            delay_s,
            lambda: self._assignments.holds(fetcher),
            give_up=give_up or self._in_order,
            reason=settlement.reason,
        ):
            fetcher.retrying.pop(message.queue_offset, None)
            self._acknowledge(fetcher, message)
            return
        await asyncio.sleep(pause_seconds(message.reconsume_times) if delay_s is None else delay_s)
        fetcher.retrying.pop(message.queue_offset, None)
        if not fetcher.revoked:
            redelivered = msgspec.structs.replace(undecoded(message), reconsume_times=message.reconsume_times + 1)
            fetcher.buffer.appendleft(redelivered)
            self._offers.add(fetcher)
