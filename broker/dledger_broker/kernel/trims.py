"""Position below which the group trims its logs."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_broker.kernel.commands import Kinds


class TrimQueues(msgspec.Struct, frozen=True):
    """First kept offsets as (topic, created position of the topic, queue id, offset).

    The leader finds them before it trims the log below `before_position`; a topic that was created anew meanwhile does
    not match its created position and keeps its offsets.
    """

    before_position: int
    first_offsets: tuple[tuple[str, int, int, int], ...]


TRIM_COMMANDS: Final[Kinds] = {22: TrimQueues}


class Trims:
    """Below `before` the log is trimmed, or about to be, on every replica, whatever this one still keeps.

    The digest of the state leaves it out.
    """

    __slots__ = ("before",)

    def __init__(self) -> None:
        self.before = 0

    def raise_to(self, position: int) -> None:
        """A trim below a position is decided; a lower one changes nothing."""
        self.before = max(self.before, position)
