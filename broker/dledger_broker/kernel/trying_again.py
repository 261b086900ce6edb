"""Timer for what was refused, and is looked at again a little later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.environment import Environment

RETRY_S: Final = 5.0
"""How long after a refusal, as by a full disk, a leader looks again, and how often while something is waited for."""


class TryingAgain:
    """Calls `look` once, `RETRY_S` after it was wanted: whoever wants it meanwhile is served by the same call."""

    def __init__(self, env: Environment, look: Callable[[], None]) -> None:
        self._env = env
        self._look = look
        self._is_wanted = False

    @property
    def is_wanted(self) -> bool:
        """Whether a call is to come."""
        return self._is_wanted

    def want(self) -> None:
        """Have it looked again."""
        if not self._is_wanted:
            self._is_wanted = True
            self._env.call_later(RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._is_wanted = False
        self._look()
