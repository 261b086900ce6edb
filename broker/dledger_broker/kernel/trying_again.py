"""Timer for refused proposals, which are tried again a little later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.environment import Environment

RETRY_S: Final = 5.0
"""Time in seconds after a refusal, for example by a full disk, until a leader tries again. Also the interval of checks
while something is waited for.
"""


class RetryTimer:
    """Timer that calls `retry` once, `RETRY_S` after it was scheduled. Requests in between share that call."""

    def __init__(self, env: Environment, retry: Callable[[], None]) -> None:
        self._env = env
        self._retry = retry
        self._is_scheduled = False

    @property
    def is_scheduled(self) -> bool:
        """True if a call is scheduled."""
        return self._is_scheduled

    def schedule(self) -> None:
        """Request a call of `retry`."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._env.call_later(RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._is_scheduled = False
        self._retry()
