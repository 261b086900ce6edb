"""Log of access control's refusals, bounded so that a client that is refused a million times does not fill a disk.

Each host, account and event gets one line in an interval of `dledger_base.telling.INTERVAL_S`. Strangers choose hosts
and accounts, so the number of lines is bounded, too, in all and per host. Refusals without a line are counted, and the
next line says how many there were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dledger_base.telling import Telling

MAX_CHARS: Final = 300
"""Maximum number of characters that a line repeats of a refusal's text. Accounts are compared up to this length."""


class Refusals:
    """Writes refusals to `logger`; `now` is a clock in seconds."""

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._telling = Telling(now)

    def tell(self, event: str, host: str, account: str, client: str, why: str) -> None:
        """Write a line for a refusal. Only count the refusal if it gets no line of its own in this interval."""
        untold = self._telling.untold(host, f"{event} {account[:MAX_CHARS]}")
        if untold is not None:
            self._logger.warning("event=%s client=%s refusal=%r untold=%d", event, client, why[:MAX_CHARS], untold)
