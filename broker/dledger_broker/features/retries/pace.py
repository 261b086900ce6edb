"""Rate limiter for send-backs: each account has a rate, because a small request stores a copy of a large message.

Send-backs above the rate wait, and are not refused. Otherwise the consumer would have to send the message by itself.
Only if the waiting requests take too much memory, a further one is refused. Its consumer would have given up before its
turn.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dledger.environment import Environment, slept
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_remoting.errors import SystemBusy

BURST_S: Final = 1.0
"""Length in seconds of the burst that a rate allows at once."""
MAX_OWNERS: Final = 10_000
"""Number of owners above which owners within their rates are forgotten."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Maximum size of all requests that wait, in bytes. About 15,000 requests of usual clients fit."""
LOOKED_AT: Final = 2
"""Number of owners that are checked for each new owner, so that no call checks all of them."""


class Pace:
    """Rate limiter that keeps, for each owner, the time at which its send-backs so far are within the rate."""

    def __init__(self, env: Environment, live: LiveConfig, counters: BrokerCounters) -> None:
        self._counters = counters
        self._env = env
        self._live = live
        self._free_at: OrderedDict[str, float] = OrderedDict()
        self._waiting_bytes = 0

    def charge(self, owner: str, size: int, request_bytes: int) -> float:
        """Charge a copy of `size` bytes to an owner. Return the seconds after which it is within the owner's rate.

        Raises `SystemBusy` if the request of `request_bytes` has to wait, and too many requests wait already.
        """
        now, config = self._env.now(), self._live.config
        one_s, bytes_s = 1 / config.send_backs_per_second, size / config.send_back_bytes_per_second
        begins = max(self._free_at.get(owner, 0.0), now - BURST_S)
        if owner not in self._free_at and len(self._free_at) >= MAX_OWNERS:
            self._forget_some(now)
        if begins > now and self._waiting_bytes + request_bytes > MAX_WAITING_BYTES:
            raise SystemBusy(
                f"requests of {self._waiting_bytes} bytes wait until their messages may be sent back, the limit is "
                f"{MAX_WAITING_BYTES}: nothing was stored, send back later, and more slowly"
            )
        self._free_at[owner] = begins + max(one_s, bytes_s)
        if begins > now:
            if one_s > bytes_s:
                self._counters.send_backs_per_second += 1
            else:
                self._counters.send_back_bytes_per_second += 1
        return max(0.0, begins - now)

    async def wait(self, request_bytes: int, wait_s: float) -> None:
        """Have a request of `request_bytes` wait."""
        self._waiting_bytes += request_bytes
        try:
            await slept(self._env, wait_s)
        finally:
            self._waiting_bytes -= request_bytes

    def _forget_some(self, now: float) -> None:
        """Forget the next owners that are within their rates. Owners that wait are checked again in a later round."""
        for _ in range(LOOKED_AT):
            name, free_at = self._free_at.popitem(last=False)
            if free_at > now:
                self._free_at[name] = free_at
