"""Limits of the values in requests about popped messages."""

from __future__ import annotations

from typing import Final

from dledger_remoting.errors import InvalidParameter

MIN_INVISIBLE_MS: Final = 1_000
"""Minimum invisible time. With less, a message would return before its consumer has handled it, again and again."""
UNTAKEN_MS: Final = 1
"""Invisible time of a message that no consumer received."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
MAX_ACK_ROWS: Final = 1_000
"""Maximum number of deliveries in a batch of acknowledgements."""


def invisible_ms_of(asked: int) -> int:
    """Return the invisible time for the time that a client requested. Raises `InvalidParameter`."""
    if not 0 <= asked <= MAX_INVISIBLE_MS:
        raise InvalidParameter(f"invisibleTime {asked} is outside 0..{MAX_INVISIBLE_MS} ms")
    return max(asked, MIN_INVISIBLE_MS)
