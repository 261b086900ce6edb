"""Table of request modes: how consumer groups consume topics, as set by request 401."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "assignments"
"""Name of the feature. It must never change, because the log records it when the feature is activated."""


class ModeKey(NamedTuple):
    """Key of a request mode: a topic and a consumer group. Neither has to exist."""

    topic: str
    group: str


class Mode(NamedTuple):
    """Request mode: whether members pop or pull.

    Each member pops its own queues and the queues of `pop_share_queues` other members; all queues if it is not
    positive.
    """

    pops: bool
    pop_share_queues: int = 0


class PutRequestMode(msgspec.Struct, frozen=True):
    """Command that sets the request mode of a topic and a group. Deleting the topic or the group removes the mode."""

    topic: str
    group: str
    pops: bool
    pop_share_queues: int


REQUEST_MODE_COMMANDS: Final[Kinds] = {52: PutRequestMode}


class RequestModeFrame(msgspec.Struct, frozen=True, tag="request-modes"):
    """Frame with request modes and their keys."""

    rows: list[tuple[ModeKey, Mode]]


class RequestModeTable(Table):
    """Table of all request modes."""

    __slots__ = ("_rows", "digest")

    digest: int

    frames = (RequestModeFrame,)

    def __init__(self) -> None:
        self._rows: dict[ModeKey, Mode] = {}
        self.digest = 0

    def __iter__(self) -> Iterator[tuple[ModeKey, Mode]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: ModeKey) -> Mode | None:
        """Return the request mode of a topic and a group, None if none was set."""
        return self._rows.get(key)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutRequestMode(topic=topic, group=group, pops=pops, pop_share_queues=share):
                self._put(ModeKey(topic, group), Mode(pops, share))

    def on_topic_deleted(self, topic: str) -> None:
        for key in [key for key in self._rows if key.topic == topic]:
            self._remove(key)

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        _ = clean_offsets
        for key in [key for key in self._rows if key.group == group]:
            self._remove(key)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        rows = list(self)
        return {"request-modes": map(RequestModeFrame, in_slices(rows))} if rows else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case RequestModeFrame(rows=rows):
                for key, mode in rows:
                    self._put(key, mode)

    def _put(self, key: ModeKey, mode: Mode) -> None:
        self._remove(key)
        self._rows[key] = mode
        self.digest = (self.digest + _hash(key, mode)) & MASK

    def _remove(self, key: ModeKey) -> None:
        mode = self._rows.pop(key, None)
        if mode is not None:
            self.digest = (self.digest - _hash(key, mode)) & MASK


REQUEST_MODES: Final = TableKey("request modes", RequestModeTable)


def _hash(key: ModeKey, mode: Mode) -> int:
    return item_hash("request mode", *key, *mode)
