"""JSON bodies of reading the log itself: the plan (20010) and the list of pins (20015)."""

from __future__ import annotations

import msgspec


class PlannedQueue(msgspec.Struct, frozen=True, gc=False):
    """Readable part of a queue: offsets from `first` to below `next`."""

    id: int
    first: int
    next: int


class PlannedTopic(msgspec.Struct, frozen=True):
    """A topic of the plan.

    Records below position `created` belong to an earlier topic of the same name. Queues in which nothing was ever
    stored are not listed.
    """

    name: str
    created: int
    queues: list[PlannedQueue]


class Cut(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Start of an entry: its `position` and `index`, and the chain crc of the entry before it.

    `min_time` and `max_time`, if asked for, are the lowest and the highest store time in ms of the records from here to
    the next cut. Both are absent if there are no records.
    """

    position: int
    index: int
    previous_chain: int
    min_time: int | None = None
    max_time: int | None = None


class ReadPlan(msgspec.Struct, frozen=True, rename="camel"):
    """Part of its group's log that one node can serve, at one applied position.

    A slice begins at a cut and ends at the next one; the last slice ends at `commit`. Each slice lies within one
    segment. `ordinal` is the group's number, assigned once. `version` counts changes of this layout.
    """

    group: str
    ordinal: int
    node: str
    role: str
    term: int
    first_position: int
    commit: int
    cuts: list[Cut]
    topics: list[PlannedTopic]
    version: int = 1


class PinRow(msgspec.Struct, frozen=True, gc=False):
    """A pin: the log is kept from `position` on until `expires` (ms since 1970). `lease` is in ms."""

    name: str
    position: int
    lease: int
    expires: int


class PinList(msgspec.Struct, frozen=True):
    """All pins of a group, by name."""

    pins: list[PinRow]
