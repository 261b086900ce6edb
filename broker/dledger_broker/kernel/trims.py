"""Position below which the group trims its logs."""

from __future__ import annotations


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
