"""Table of group time: the last that a leader has written to the log. The next leader continues from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.clock import ClockReading
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table


class GroupTime(msgspec.Struct, frozen=True):
    """Command with the leader's group time `now_ms`, ms since 1970, when it proposed this; the last command counts."""

    now_ms: int


GROUP_TIME_COMMANDS: Final[Kinds] = {30: GroupTime}


class GroupTimeFrame(msgspec.Struct, frozen=True, tag="group-time"):
    """The newest group time."""

    now_ms: int


class GroupTimeTable(Table):
    """The last group time in the log, `now_ms`, None if the log never had one.

    The moment at which this replica applied it differs between replicas, so it is in no digest.
    """

    __slots__ = ("_applied_at", "_is_new", "now_ms")

    frames = (GroupTimeFrame,)

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self._applied_at = 0.0
        self._is_new = False

    @property
    def digest(self) -> int:
        return 0 if self.now_ms is None else item_hash("group-time", self.now_ms)

    @property
    def carried(self) -> ClockReading | None:
        """The last group time in the log, with the moment of this replica's monotonic clock at which it was applied."""
        return None if self.now_ms is None else ClockReading(self.now_ms, self._applied_at)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case GroupTime(now_ms=now_ms):
                self.now_ms, self._is_new = now_ms, True

    def batch_applied(self, now: Callable[[], float]) -> None:
        if self._is_new:
            self._applied_at, self._is_new = now(), False

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {} if self.now_ms is None else {"group-time": (GroupTimeFrame(self.now_ms),)}

    def restore_frame(self, frame: Frame, now: float) -> None:
        match frame:
            case GroupTimeFrame(now_ms=now_ms):
                self.now_ms, self._applied_at = now_ms, now
