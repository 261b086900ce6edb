"""Table of group time: the newest that a leader has told, which its successor goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.clock import Carried
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table


class GroupTime(msgspec.Struct, frozen=True):
    """It is `now_ms`, ms since 1970, as the leader believed when it proposed this; the last one counts."""

    now_ms: int


GROUP_TIME_COMMANDS: Final[Kinds] = {30: GroupTime}


class GroupTimeFrame(msgspec.Struct, frozen=True, tag="group-time"):
    """The newest group time."""

    now_ms: int


class GroupTimeTable(Table):
    """`now_ms` is the group time that was told last, None if none ever was.

    When this replica applied it is its own affair, and in no digest.
    """

    __slots__ = ("_applied_at", "_is_new", "now_ms")

    frames = (GroupTimeFrame,)

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self._applied_at = 0.0
        self._is_new = False

    @property
    def digest(self) -> int:
        """See `Table.digest`."""
        return 0 if self.now_ms is None else item_hash("group-time", self.now_ms)

    @property
    def carried(self) -> Carried | None:
        """What was told last, and the moment of this replica's monotonic clock at which it was applied."""
        return None if self.now_ms is None else Carried(self.now_ms, self._applied_at)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case GroupTime(now_ms=now_ms):
                self.now_ms, self._is_new = now_ms, True

    def batch_applied(self, now: Callable[[], float]) -> None:
        """See `Table.batch_applied`."""
        if self._is_new:
            self._applied_at, self._is_new = now(), False

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        return {} if self.now_ms is None else {"group-time": (GroupTimeFrame(self.now_ms),)}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        match frame:
            case GroupTimeFrame(now_ms=now_ms):
                self.now_ms, self._applied_at = now_ms, now
