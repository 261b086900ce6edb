"""Status of a replica; the JSON of `/status`."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger.loop_holds import Held

_NAMES: Final = {"disk_used": "disk_used_permille"}
"""A reader of the JSON has nothing but the name to know the unit by."""


class PeerStatus(msgspec.Struct, frozen=True, rename=_NAMES):
    """One other member as the leader sees it; `lag` in entries, `contact_ms` since it last answered, `clock_ahead_ms`
    its wall clock against the leader's, None as long as it has not told; `disk_used` how full its disk is, in 1/1000
    (1000: no space for more).
    """

    node_id: str
    voter: bool
    match_index: int
    lag: int
    contact_ms: int
    mode: str
    disk_used: int
    clock_ahead_ms: int | None


class LoopLateness(msgspec.Struct, frozen=True):
    """How late timers of the event loop fired since the start.

    `at_most` has the number of those that were late by at most each of `dledger.replica.lateness.BOUNDS_S`, and last
    the number of all; `seconds` is the sum.
    """

    at_most: list[int]
    seconds: float


class NodeStatus(msgspec.Struct, frozen=True, rename=_NAMES):
    """Positions are bytes of the log, indexes count entries from 0; `disk_used` as in `PeerStatus`."""

    node_id: str
    incarnation: str
    cluster: str
    group: str
    role: str
    term: int
    leader_id: str | None
    ready: bool
    voter: bool
    first_index: int
    last_index: int
    commit_index: int
    applied_index: int
    first_position: int
    last_position: int
    durable_position: int
    applied_position: int
    disk_used: int
    syncs: int
    sync_seconds: float
    elections: int
    voters: list[str]
    learners: list[str]
    peers: list[PeerStatus]
    failure: str | None = None
    corrupt_bytes: int = 0
    """Not served, because they do not verify and no peer's bytes have replaced them yet."""
    repairs: int = 0
    """Corrupt ranges healed since the start."""
    rotten_snapshots: int = 0
    """Neither trimmed to nor sent, because they do not verify and no peer's has replaced them yet."""
    loop_late: LoopLateness | None = None
    loop_held: list[Held] = []
    """What held the event loop since the start, see `dledger.loop_holds`."""
    refusal: str | None = None
    """Why this node takes no writes although it leads, or that its own disk is full, and what to do."""
