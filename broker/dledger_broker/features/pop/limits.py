"""Limits of what clients may ask of popped messages."""

from __future__ import annotations

from typing import Final

from dledger_remoting.errors import InvalidParameter

MIN_INVISIBLE_MS: Final = 1_000
"""What is hidden for less would come back before its consumer has looked at it, again and again."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
MAX_ACK_ROWS: Final = 1_000
"""Deliveries that one batch of acknowledgements names."""


def invisible_ms_of(asked: int) -> int:
    """How long messages are hidden for whom asks for so long. Raises `InvalidParameter`."""
    if not 0 <= asked <= MAX_INVISIBLE_MS:
        raise InvalidParameter(f"invisibleTime {asked} is outside 0..{MAX_INVISIBLE_MS} ms")
    return max(asked, MIN_INVISIBLE_MS)
